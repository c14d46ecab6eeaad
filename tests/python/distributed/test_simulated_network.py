"""Collectives without peers and without data: they take their modelled time."""

import json
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
COLLECTIVES = [
    "broadcast",
    "all_reduce",
    "all_reduce_coalesced",
    "reduce",
    "all_gather",
    "gather_and_scatter",
    "reduce_scatter",
    "all_to_all_single",
    "groups",
    "functional_collectives",
    "interleaved",
]
SCRIPT = f"""
import json, sys, warnings
import torch
import torch.distributed as dist
import torch_chameleon
from torch.testing._internal.distributed.fake_pg import FakeStore
warnings.simplefilter("ignore")
sys.path.insert(0, {str(HERE)!r})
import scenarios
torch_chameleon.config.physical_device = "simulated"
torch_chameleon.config.simulated_gpu = "h100"
dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
"""
EACH = """
found = {}
for name in sys.argv[1:]:
    begin, end = (torch.Event("chameleon", enable_timing=True) for _ in "12")
    begin.record()
    getattr(scenarios, name)("chameleon", 0, 4)
    end.record()
    end.synchronize()
    found[name] = begin.elapsed_time(end)
print(json.dumps(found))
"""


def run(text, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + text, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def times():
    return run(EACH, *COLLECTIVES)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_each_takes_time(times, name):
    assert times[name] > 0.005  # ms: a collective's latency at least


def test_the_caller_waits_where_it_says_so():
    """Compute goes on beside a collective; wait() orders it behind."""
    found = run("""
def time_of(waits):
    x = torch.empty(1 << 28, device="chameleon")
    y = torch.empty(1 << 20, device="chameleon")
    begin, end = (torch.Event("chameleon", enable_timing=True) for _ in "12")
    begin.record()
    work = dist.all_reduce(x, async_op=True)
    if waits:
        work.wait()
    y.add_(1)
    end.record()
    end.synchronize()
    torch.chameleon.synchronize()
    return begin.elapsed_time(end)
print(json.dumps([time_of(False), time_of(True)]))
""")
    beside, behind = found
    assert beside < 0.1
    # 1 GiB among 4 on NVLink, added up by the switch at 274 GB/s.
    assert behind == pytest.approx(2**30 / 274e9 * 1e3, rel=0.05)


def test_an_operand_orders_what_uses_it():
    found = run("""
x = torch.empty(1 << 28, device="chameleon")
begin, end = (torch.Event("chameleon", enable_timing=True) for _ in "12")
begin.record()
dist.all_reduce(x, async_op=True)
x[:1].add_(1)
end.record()
end.synchronize()
print(json.dumps(begin.elapsed_time(end)))
""")
    assert found > 2**30 / 274e9 * 1e3


def test_what_is_received_is_not_known():
    found = run("""
torch_chameleon.config.simulated_reads = "raise"
x = torch.zeros(4, device="chameleon")
dist.all_reduce(x)
try:
    x.sum().item()
except RuntimeError as error:
    print(json.dumps(str(error)))
""")
    assert "a simulated device has none" in found


def test_a_receive_that_no_send_goes_with_is_refused():
    found = run("""
x = torch.zeros(4, device="chameleon")
y = torch.zeros(4, device="chameleon")
try:
    dist.recv(x, 1)
except NotImplementedError as error:
    said = str(error)
for work in dist.batch_isend_irecv([
    dist.P2POp(dist.isend, x, 1), dist.P2POp(dist.irecv, y, 3)]):
    work.wait()
print(json.dumps(said))
""")
    assert "when that one sends is not modelled" in found


def test_all_that_is_kept_goes_where_the_device_is_full():
    """Collectives swap as all ops do."""
    found = run("""
torch_chameleon.config.hbm_budget = "64MiB"
xs = [torch.empty(4 << 20, device="chameleon") for _ in range(8)]
for _ in range(2):
    for x in xs:
        dist.all_reduce(x)
torch.chameleon.synchronize()
print(json.dumps(torch_chameleon.swap_stats()["evictions"]))
""")
    assert found > 0
