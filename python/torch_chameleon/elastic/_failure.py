"""A failure, as far as a launcher knows it."""

from collections.abc import Sequence
from typing import NamedTuple

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from torch_chameleon.elastic._memory import Memory
from torch_chameleon.elastic._situation import Situation


class Failure(NamedTuple):
    """Which worker it was, and what all left."""

    rank: int
    now: Situation
    memories: Sequence[Memory]
    restart_s: float  # until workers were back, after the last one; 0: unknown
    is_device_lost: bool = False  # as its driver says

    def forget(self) -> None:
        """Drops all generations: who comes back reads the checkpoint."""
        for memory in self.memories:
            for slot in (*memory.slots, *memory.partner_slots):
                slot.discard()

    @staticmethod
    def first(error: ChildFailedError) -> int:
        """Which rank failed, and did not only miss another one.

        Args:
            error: The agent's. Who was killed comes before who raised an error,
                and then whoever was first.
        """
        failed = error.failures
        return min(
            failed, key=lambda x: (failed[x].exitcode >= 0, failed[x].timestamp)
        )
