"""The window bound: what must cross the links while a run of ops runs.

Of the bytes that a window of ops needs from before it, all but what memory
holds at its start must come in while it runs; of the bytes that it leaves for
later, all but what memory holds at its end must have gone out. The step lasts
at least as long as the windows of any partition of the cycle together; the
best partition is found by dynamic programming.
"""

from __future__ import annotations

import numpy as np

from .step import Links, Step


def window_bound_ns(
    step: Step, budget_bytes: int, links: Links, slots: int = 300
) -> float:
    """A lower bound on the duration of the step, in nanoseconds.

    Args:
        step: The cycle of ops.
        budget_bytes: Memory for all that is resident.
        links: Bandwidths.
        slots: Windows begin and end at this many ops, equally far apart in
            time; more are slower and tighter.

    Raises:
        ValueError: One op alone needs more than the budget.
    """
    step.check_feasible(budget_bytes)
    times = window_times_ns(step, budget_bytes, links, boundaries(step, slots))
    return max(step.compute_ns, best_partition(times))


def boundaries(step: Step, slots: int) -> np.ndarray:
    """Distinct ops that start closest to equal distances in time."""
    wanted = np.arange(slots) * step.compute_ns / slots
    starting = np.searchsorted(step.starts_ns[:-1], wanted)
    return np.unique(np.minimum(starting, step.ops - 1))


def window_times_ns(
    step: Step, budget_bytes: int, links: Links, bounds: np.ndarray
) -> np.ndarray:
    """times[i, n]: of the window of n+1 slots from boundary i on, at least."""
    count = len(bounds)
    # Bytes from before boundary i that are first needed in the n-th slot after
    # it, and bytes needed after boundary j that were last written in the n-th
    # slot before it.
    needed = np.zeros((count, count))
    left = np.zeros((count, count))
    for storage in step.storages:
        alive = slice(None)
        if not storage.persistent:
            alive = slice(
                *np.searchsorted(
                    bounds, (storage.created, storage.freed), side="right"
                )
            )
        for i in range(count)[alive]:
            op = int(bounds[i])
            access = storage.next_access(op, step.ops)
            if access is None or not access[1]:
                continue
            needed[i, _slots_between(bounds, step.ops, i, access[0])] += (
                storage.size_bytes
            )
            written = storage.last_write(op, step.ops)
            if written is not None:
                distance = _slots_between(bounds, step.ops, i, written)
                left[i, -distance - 1] += storage.size_bytes
    needed = np.cumsum(needed, axis=1)
    left = np.cumsum(left, axis=1)

    created = step.created_bytes[bounds]
    ends = (np.arange(count)[:, None] + np.arange(1, count + 1)) % count
    bytes_in = np.maximum(needed - (budget_bytes - created)[:, None], 0)
    lengths = np.broadcast_to(np.arange(count), ends.shape)
    bytes_out = np.maximum(
        left[ends, lengths] - (budget_bytes - created)[ends], 0
    )
    starts = step.starts_ns[bounds]
    compute = (starts[ends] - starts[:, None]) % step.compute_ns
    compute[:, -1] = step.compute_ns
    return np.maximum(compute, links.time_ns(bytes_in, bytes_out))


def _slots_between(bounds: np.ndarray, ops: int, i: int, op: int) -> int:
    """In which slot after (before: negative) boundary i an op lies."""
    turns, within = divmod(op, ops)
    slot = int(np.searchsorted(bounds, within, side="right")) - 1
    if slot < 0:  # before the first boundary: in the last slot, one turn ago
        slot, turns = len(bounds) - 1, turns - 1
    return slot + turns * len(bounds) - i


def best_partition(times: np.ndarray) -> float:
    """The greatest sum over cyclic partitions into windows."""
    count = len(times)
    best = 0.0
    for start in range(count):
        longest = np.zeros(count + 1)
        for end in range(1, count + 1):
            begins = np.arange(end)
            longest[end] = np.max(
                longest[:end]
                + times[(start + begins) % count, end - begins - 1]
            )
        best = max(best, longest[count])
    return float(best)
