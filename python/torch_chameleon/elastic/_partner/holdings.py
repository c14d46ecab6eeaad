"""Which ranks' generations are where, as all ranks know it."""

from collections.abc import Sequence
from typing import NamedTuple


class Key(NamedTuple):
    """A generation, which has the same values wherever it is.

    A number alone does not say which: a machine that was away may have one of
    a life of the training that nobody went on from. A life has as many ranks
    from its beginning to its end.
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
    is_sharded: int = 0  # whether other ranks' images have what it lacks

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
        # The processes that have an image of a generation, by who wrote it.
        self._of: dict[Key, list[list[int]]] = {}
        self._copied: dict[Key, set[int]] = {}  # ranks, in partners' slots
        self._own: set[tuple[Key, int]] = set()
        self._sharded: set[Key] = set()
        for process, holdings in enumerate(said):
            for each in holdings:
                if not each.number:
                    continue
                ranks = self._of.setdefault(
                    each.key, [[] for _ in range(each.world)]
                )
                ranks[each.rank].append(process)
                if each.is_sharded:
                    self._sharded.add(each.key)
                if each.is_copy:
                    self._copied.setdefault(each.key, set()).add(each.rank)
                elif (each.rank, each.world) == (process, self.world):
                    self._own.add((each.key, process))

    @property
    def newest(self) -> Key | None:
        """The newest generation of which each rank's image is somewhere."""
        return max(
            (x for x, ranks in self._of.items() if all(ranks)), default=None
        )

    def writers(self, key: Key) -> int:
        """How many ranks wrote it.

        Args:
            key: A generation.
        """
        return len(self._of[key])

    def is_needed_whole(self, key: Key) -> bool:
        """Whether each process needs all images: it has other shards now.

        Args:
            key: A generation.
        """
        return self.writers(key) != self.world and key in self._sharded

    def moves(self, key: Key) -> list[tuple[int, int]]:
        """Who gives an image of it to whom: those that lack their own.

        Where it is of another number of ranks any will do, and those that have
        none get one.

        Args:
            key: Which generation; all of it is somewhere.

        Returns:
            Processes, from and to, in an order in which nobody waits for ever.
            The image is that which `image_for` says.
        """
        gives = [0] * self.world
        found = []
        for process in range(self.world):
            if self._has_its_own(key, process):
                continue
            holders = self._of[key][self.image_for(key, process)]
            giver = min(
                holders, key=lambda each: (each != process, gives[each])
            )
            gives[giver] += 1
            found.append((giver, process))
        return found

    def image_for(self, key: Key, process: int) -> int:
        """By which rank the image was written that a process begins with.

        Args:
            key: Which generation.
            process: Its rank now.
        """
        return process % self.writers(key)

    def givers(self, key: Key) -> list[int]:
        """For each rank that wrote it, who gives its image to all.

        Args:
            key: Which generation; all of it is somewhere.
        """
        gives = [0] * self.world
        found = []
        for holders in self._of[key]:
            giver = min(holders, key=lambda each: gives[each])
            gives[giver] += 1
            found.append(giver)
        return found

    def copied(self, newest: Key) -> Key | None:
        """The generation to keep for the next time that a machine is lost.

        Args:
            newest: The one that all go back to.

        Returns:
            That which partners have of most ranks, of equals the newest; of as
            many ranks as wrote the one that all go back to.
        """
        return max(
            (
                key
                for key in self._copied
                if key.number <= newest.number
                and self.writers(key) == self.writers(newest)
            ),
            key=lambda key: (len(self._copied[key]), key),
            default=None,
        )

    def is_copied(self, key: Key) -> bool:
        """Whether a machine may be lost, and it still is there.

        Args:
            key: A generation that partners have of some rank.
        """
        everyone = set(range(self.world))
        return (
            self.writers(key) == self.world
            and self._copied[key] == everyone
            and all((key, rank) in self._own for rank in everyone)
        )

    def _has_its_own(self, key: Key, process: int) -> bool:
        if self.writers(key) == self.world:
            return (key, process) in self._own
        return any(process in holders for holders in self._of[key])
