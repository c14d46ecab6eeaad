"""What a rank's life was like, for whoever counts afterwards."""

import mmap
import os
import time

from torch_chameleon.elastic._figures import Figures

_PAGE = 4096
_FIGURES = slice(-len(Figures._fields), None)  # behind the counts
_REACHED, _LOST, _BACK_AT, _LIVES, _FETCHES, _READINGS, _RANKS = range(7)


class Ledger:
    """A page of memory beside a rank's slots, for figures.

    A worker writes it; the launcher reads it when workers are gone.
    """

    def __init__(self, descriptor: int):
        """Maps it.

        Args:
            descriptor: The file's.
        """
        os.ftruncate(descriptor, _PAGE)
        page = memoryview(mmap.mmap(descriptor, _PAGE))
        self._words = page.cast("Q")
        self._reals = page.cast("d")[_FIGURES]
        self._had_done = 0  # somebody, when this life began

    @property
    def reached(self) -> int:
        """How many steps were done when `commit()` was last called."""
        return self._words[_REACHED]

    @reached.setter
    def reached(self, steps: int) -> None:
        self._words[_REACHED] = steps

    @property
    def lost(self) -> int:
        """Steps that were done and not gone back to, of all failures."""
        return self._words[_LOST]

    @property
    def back_at(self) -> float:
        """When a worker was last back, on `time.monotonic()`; 0: never."""
        return self._words[_BACK_AT] / 1e9

    @property
    def lives(self) -> int:
        """How many processes of this rank have made a state."""
        return self._words[_LIVES]

    @property
    def fetches(self) -> int:
        """How often some rank's state came from another rank's memory."""
        return self._words[_FETCHES]

    @fetches.setter
    def fetches(self, times: int) -> None:
        self._words[_FETCHES] = times

    @property
    def readings(self) -> int:
        """How often the rank's state came from disk."""
        return self._words[_READINGS]

    @property
    def ranks(self) -> int:
        """How many there were when a worker was last back; 0: never."""
        return self._words[_RANKS]

    @property
    def figures(self) -> Figures:
        """What the rank has measured."""
        return Figures(*self._reals)

    def measured(self, **figures: float) -> None:
        """Notes figures.

        Args:
            **figures: Some, by their names in `Figures`.
        """
        for name, value in figures.items():
            self._reals[Figures._fields.index(name)] = value

    def back(
        self, steps: int, reached: int, ranks: int, is_read: bool = False
    ) -> None:
        """Notes that a worker has a committed state, or begins again.

        Args:
            steps: So many it has behind it.
            reached: So many somebody had done.
            ranks: How many are back.
            is_read: Whether the state was on disk.
        """
        self._words[_READINGS] += is_read
        self._words[_RANKS] = ranks
        self._had_done = reached
        self._words[_LOST] += max(reached - steps, 0)
        self._words[_REACHED] = steps
        self._words[_LIVES] += 1
        self._words[_BACK_AT] = time.monotonic_ns()

    def healed(self, steps: int) -> None:
        """Notes that another one's state took the place of this rank's.

        Args:
            steps: So many it has behind it. They are not lost.
        """
        came_back = min(steps, self._had_done) - self.reached
        self._words[_LOST] -= max(came_back, 0)
        self.reached = steps
