"""Where a training is, by what its ranks have left in their memories."""

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

from torch_chameleon.elastic._figures import Figures
from torch_chameleon.elastic._memory import Memory
from torch_chameleon.elastic._partner.placement import partner_of


def lost_together(ranks: int, machines: float) -> int:
    """How many ranks are lost with one: all of a machine's, if it is lost.

    Args:
        ranks: How many there are.
        machines: On how many; equally many on each.
    """
    return max(round(ranks / machines), 1) if machines > 1 else 1


class Situation(NamedTuple):
    """What there is to go back to, and how long things take."""

    ranks: int
    reached: int  # steps that somebody had done
    in_memory: int | None  # done at the newest generation that all have
    figures: Figures  # the slowest rank's

    @classmethod
    def of(cls, memories: Sequence[Memory], ranks: int) -> "Situation":
        """Reads headers and ledgers; checksums are for those who go back.

        Checksums of all of the state would take seconds at each failure; a
        wrong price costs that only where something is damaged, which whoever
        comes back finds anyway.

        Args:
            memories: Of those ranks that can be seen.
            ranks: How many there are.
        """
        generations = [
            {slot.generation: slot.steps for slot in each.slots}
            for each in memories
        ]
        shared = set.intersection(*map(set, generations)) - {0}
        figures = reduce(
            Figures.worst, (each.ledger.figures for each in memories)
        )
        if not _is_copied(int(figures.partner_steps), memories, ranks):
            figures = figures._replace(partner_steps=0)
        return cls(
            ranks,
            max(each.ledger.reached for each in memories),
            generations[0][max(shared)] if shared else None,
            figures,
        )

    @property
    def machines(self) -> int:
        """How many there are."""
        return max(int(self.figures.machines), 1)

    @property
    def left(self) -> int:
        """Ranks that are left where one is lost, or its machine is."""
        return self.ranks - lost_together(self.ranks, self.machines)


def _is_copied(steps: int, memories: Sequence[Memory], ranks: int) -> bool:
    """Whether each rank's part is there still, or in its partner's memory.

    What cannot be seen is on another machine, and there.
    """
    if len(memories) < ranks:
        return True
    return all(
        any(
            slot.generation and slot.steps == steps
            for slot in (
                *memory.slots,
                *memories[partner_of(rank, ranks)].partner_slots,
            )
        )
        for rank, memory in enumerate(memories)
    )
