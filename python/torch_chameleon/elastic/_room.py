"""Whether the host has room for what is kept, beside evicted tensors."""

from collections.abc import Sequence

from torch_chameleon import _C, chameleon
from torch_chameleon._stats import swap_stats
from torch_chameleon.elastic._memory import Memory


def shortage(
    memories: Sequence[Memory], copy_bytes: int, copies: int
) -> str | None:
    """What a machine lacks, in a sentence, before it is short of it.

    Files take memory as they are filled, and nobody is refused any: a system
    that has none left ends a process.

    Args:
        memories: Of ranks of this machine, which keep as much each.
        copy_bytes: What a rank keeps, once.
        copies: How many of it there will be.

    Returns:
        None: It has enough.
    """
    _, available = _C.machine_memory()
    ranks, size = len(memories), _C.format_bytes
    more = sum(max(copies * copy_bytes - x.held_bytes, 0) for x in memories)
    used, budget = _evicted_bytes()
    left = ranks * (budget - used)
    if more + left <= available:
        return None
    fits = used + (available - more) // ranks
    return (
        f"elastic.State keeps {copies} copies of {size(copy_bytes)} for each "
        f"of {ranks} ranks, {size(more)} more than it has by now; with "
        f"{size(left)} that host_budget still allows it is more than the "
        f"{size(available)} of host memory that are available. "
        + (
            f"Set torch_chameleon.config.host_budget = {size(fits)} or less"
            if fits > used
            else "Name less in elastic.State, or start fewer ranks here"
        )
    )


def _evicted_bytes() -> tuple[int, int]:
    """What evicted tensors take, and what they may take."""
    if not chameleon.is_initialized() or _C.physical_device() == "simulated":
        return 0, 0
    stats = swap_stats()
    return stats["host_bytes"], max(stats["host_budget"], stats["host_bytes"])
