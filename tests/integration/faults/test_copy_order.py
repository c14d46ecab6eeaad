"""Two copies that use one place are ordered by a wait, whatever they are for.

On the cpu device a copy may run as late as somebody waits for it, and a checker
ends the process where no wait orders two accesses.
"""

from support import needs_testing

pytestmark = needs_testing

FETCHED_AHEAD = """
import torch, torch_chameleon
from torch_chameleon import _C, _testing
_testing.set_cpu_adversary("copies=on_await")
torch_chameleon.config.hbm_budget = 1 << 20
torch_chameleon.config.oversubscription = 64
# 256 KiB each: four fit.
xs = [torch.full((64 * 1024,), float(i)).to("chameleon") for i in range(10)]

def on_device():
    return [_testing.block_state(x)["state"] == "resident" for x in xs]

def attack():
    for _ in range(50):  # the policy learns the step, and fetches ahead
        for i, x in enumerate(xs):
            before = on_device()
            x.sum()
            for j, (was, now) in enumerate(zip(before, on_device())):
                if before[i] and now and not was:  # its copy in has not run
                    _C.evict(x)
                    %s
                    return xs[j].sum().item()
        torch_chameleon.step()

print(attack())
"""


def test_a_place_that_a_fetch_still_reads_is_not_filled(fresh):
    """Overwritten and evicted again, the tensor gets its old place anew."""
    steps = "_C.evict(xs[j]); xs[j].zero_(); _C.evict(xs[j])"
    assert fresh(FETCHED_AHEAD % steps).strip() == "0.0"


def test_nor_written_by_the_host(fresh):
    steps = "_C.evict(xs[j]); xs[j].copy_(torch.full((64 * 1024,), 0.5))"
    assert fresh(FETCHED_AHEAD % steps).strip() == str(0.5 * 64 * 1024)


def test_nor_used_for_another_tensor(fresh):
    steps = "_C.evict(xs[j]); xs[j] = torch.ones(4); _C.evict_all(0)"
    assert fresh(FETCHED_AHEAD % steps).strip() == "4.0"
