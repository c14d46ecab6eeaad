"""Where a training is, by what its ranks have left in their memories."""

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

from torch_chameleon.elastic._figures import Figures
from torch_chameleon.elastic._memory import Memory


class Situation(NamedTuple):
    """What there is to go back to, and how long things take."""

    ranks: int
    reached: int  # steps that somebody had done
    in_memory: int | None  # done at the newest generation that all have
    figures: Figures  # the slowest rank's

    @classmethod
    def of(cls, memories: Sequence[Memory], ranks: int) -> "Situation":
        """Reads headers and ledgers; checksums are for those who go back.

        Args:
            memories: Of those ranks that can be seen.
            ranks: How many there are.
        """
        generations = [
            {slot.generation: slot.steps for slot in each.slots}
            for each in memories
        ]
        shared = set.intersection(*map(set, generations)) - {0}
        return cls(
            ranks,
            max(each.ledger.reached for each in memories),
            generations[0][max(shared)] if shared else None,
            reduce(Figures.worst, (each.ledger.figures for each in memories)),
        )
