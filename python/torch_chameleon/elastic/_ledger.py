"""What a rank's life was like, for whoever counts afterwards."""

import mmap
import os
import time

_PAGE = 4096
_REACHED, _LOST, _BACK_AT, _LIVES = range(4)


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
        self._words = memoryview(mmap.mmap(descriptor, _PAGE)).cast("Q")

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

    def back(self, steps: int, reached: int) -> None:
        """Notes that a worker has a committed state, or begins again.

        Args:
            steps: So many it has behind it.
            reached: So many somebody had done.
        """
        self._words[_LOST] += max(reached - steps, 0)
        self._words[_REACHED] = steps
        self._words[_LIVES] += 1
        self._words[_BACK_AT] = time.monotonic_ns()
