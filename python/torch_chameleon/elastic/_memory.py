"""A rank's memory that outlives its process."""

import os
import weakref
from collections.abc import Sequence

from torch_chameleon.elastic._ledger import Ledger
from torch_chameleon.elastic._slot import Slot

_SLOTS, _PARTNER_SLOTS = 5, 2
FILES = _SLOTS + _PARTNER_SLOTS + 1  # of a rank: a ledger, too


class Memory:
    """Generations and a ledger, in files that only descriptors name.

    The generation before is kept until the new one is whole. Further slots are
    empty but for the time in which one is written to disk, or copied to a
    partner, or is the last one that partners have. In two more are copies of
    the generations of the rank whose partner this one is.
    """

    def __init__(self, descriptors: Sequence[int]):
        """Maps the files of a rank.

        Args:
            descriptors: Theirs, which become the memory's.
        """
        weakref.finalize(self, _close, descriptors)
        *files, ledger = descriptors
        slots = [Slot(descriptor) for descriptor in files]
        self.slots, self.partner_slots = slots[:_SLOTS], slots[_SLOTS:]
        self.ledger = Ledger(ledger)

    @property
    def held_bytes(self) -> int:
        """What all slots take of the host's memory."""
        return sum(
            each.held_bytes for each in (*self.slots, *self.partner_slots)
        )

    @staticmethod
    def create(rank: int) -> list[int]:
        """Makes the files of a rank.

        Args:
            rank: Which; people read it in /proc.

        Returns:
            Their descriptors, which no child inherits.
        """
        name = f"chameleon elastic {rank}"
        return [os.memfd_create(name) for _ in range(FILES)]

    @classmethod
    def held_by(cls, process: int, descriptors: Sequence[int]) -> "Memory":
        """That which another process of this user holds.

        Args:
            process: Its number.
            descriptors: The files', there.

        Raises:
            OSError: There is no such process, or it does not hold them.
        """
        paths = [f"/proc/{process}/fd/{each}" for each in descriptors]
        return cls([os.open(path, os.O_RDWR | os.O_CLOEXEC) for path in paths])


def _close(descriptors: Sequence[int]) -> None:
    for each in descriptors:
        os.close(each)
