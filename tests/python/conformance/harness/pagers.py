"""What moves memory while a case runs.

never   nothing is evicted
all     everything is evicted before every op
random  each block is evicted with even chance before every op
tight   the budget is so small that barely one op fits

And, in test_reruns, what drops it: all that ops made which may run again
(dropped), each with even chance (dropped at random), or that and evictions at
random (dropped and evicted).
"""

import zlib

import torch
import torch_chameleon
from support import dropping, evicting

DROPPING_PAGERS = (
    "dropped",
    "dropped at random",
    "dropped and evicted",
)
PAGERS = ("never", "all", "random", "tight")

_SMALLEST_BYTES = 4096
_LARGEST_BYTES = 1 << 30


def seed_of(case):
    """A seed that a case keeps from run to run."""
    return zlib.crc32(case.encode())


class LeastBudget:
    """Finds the smallest budget that an action runs in, by doubling.

    Attempts that do not fit must fail cleanly: what they left is not looked
    at, the next attempt starts from fresh operands.
    """

    def __init__(self):
        self.bytes = _SMALLEST_BYTES

    def run(self, action):
        """Returns action() in the least budget, remembered for the next."""
        size = max(_SMALLEST_BYTES, self.bytes // 2)
        while True:
            try:
                with torch_chameleon.config.patch(
                    hbm_budget=size, oversubscription=1024
                ):
                    result = action()
                self.bytes = size
                return result
            except torch.OutOfMemoryError:
                size *= 2
                if size > _LARGEST_BYTES:
                    raise


def run_under(pager, seed, action, least=None):
    """Returns action() under a pager."""
    if pager == "tight":
        return (least or LeastBudget()).run(action)
    if pager in DROPPING_PAGERS:
        which = "all" if pager == "dropped" else "random"
        evicted = "random" if pager == "dropped and evicted" else "never"
        with evicting(evicted, seed), dropping(which, seed):
            return action()
    with evicting(pager, seed):
        return action()
