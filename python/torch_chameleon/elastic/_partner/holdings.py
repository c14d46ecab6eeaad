"""Which ranks' generations are where, as all ranks know it."""

from collections.abc import Sequence
from typing import NamedTuple


class Key(NamedTuple):
    """A generation, which has the same values wherever it is.

    A number alone does not say which: a machine that was away may have one of
    a life of the training that nobody went on from.
    """

    number: int
    life: int


class Holding(NamedTuple):
    """What a slot has."""

    number: int = 0  # 0: nothing that is whole
    life: int = 0
    rank: int = 0  # who wrote it
    world: int = 0  # of how many
    is_copy: int = 0  # whether it is in a partner's slot

    @property
    def key(self) -> Key:
        """The generation."""
        return Key(self.number, self.life)


class Holdings:
    """What all processes have, and what follows from it for each of them."""

    def __init__(self, said: Sequence[Sequence[Holding]]):
        """The same on all ranks.

        Args:
            said: What each process has, by its rank now.
        """
        self.world = len(said)
        # The processes that have a rank's image of a generation.
        self._of: dict[Key, list[list[int]]] = {}
        self._copied: dict[Key, set[int]] = {}  # ranks, in partners' slots
        self._own: set[tuple[Key, int]] = set()
        for process, holdings in enumerate(said):
            for each in holdings:
                if not each.number or each.world != self.world:
                    continue
                ranks = self._of.setdefault(
                    each.key, [[] for _ in range(self.world)]
                )
                ranks[each.rank].append(process)
                if each.is_copy:
                    self._copied.setdefault(each.key, set()).add(each.rank)
                elif each.rank == process:
                    self._own.add((each.key, process))

    @property
    def newest(self) -> Key | None:
        """The newest generation of which each rank's image is somewhere."""
        return max(
            (x for x, ranks in self._of.items() if all(ranks)), default=None
        )

    def moves(self, key: Key) -> list[tuple[int, int]]:
        """Who gives its image of it to whom: those that lack their own.

        Args:
            key: Which generation; all of it is somewhere.

        Returns:
            Processes, from and to, in an order in which nobody waits for ever.
        """
        gives = [0] * self.world
        found = []
        for rank, holders in enumerate(self._of[key]):
            if (key, rank) in self._own:
                continue
            giver = min(holders, key=lambda each: (each != rank, gives[each]))
            gives[giver] += 1
            found.append((giver, rank))
        return found

    def copied(self, newest: Key) -> Key | None:
        """The generation to keep for the next time that a machine is lost.

        Args:
            newest: The one that all go back to.

        Returns:
            That which partners have of most ranks, of equals the newest.
        """
        return max(
            (key for key in self._copied if key.number <= newest.number),
            key=lambda key: (len(self._copied[key]), key),
            default=None,
        )
