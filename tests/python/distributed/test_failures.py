"""A rank that raises, or dies, ends the others in time, and none hangs."""

import re
import signal

import pytest
from ranks import started
from support import needs_testing

TRAINING = """
import os, signal, sys
from datetime import timedelta
import torch, torch_chameleon
import torch.distributed as dist
from torch import nn

torch_chameleon.config.hbm_budget = "1600KiB"
torch_chameleon.config.oversubscription = 16
rank = int(os.environ["RANK"])
torch.chameleon.set_device(rank)
dist.init_process_group(timeout=timedelta(seconds=20))
torch.manual_seed(0)
net = nn.parallel.DistributedDataParallel(
    nn.Sequential(*[nn.Linear(128, 128) for _ in range(12)]).to("chameleon"),
    bucket_cap_mb=0.1,
)
optimizer = torch.optim.AdamW(net.parameters())
for step in range(6):
    loss = net(torch.ones(8, 128, device="chameleon")).square().mean()
    if step == 3 and rank == 1:
        {failure}
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained")
"""
FAILURES = {
    "raises": "raise ValueError('no more data')",
    "dies": "os.kill(os.getpid(), signal.SIGKILL)",
    "stops": "import time; time.sleep(60)",
}


ABORTED = """
import os, sys, time
import torch
import torch.distributed as dist

device = sys.argv[1]
rank = int(os.environ["RANK"])
if device == "chameleon":
    import torch_chameleon
    from torch_chameleon import _testing
    torch.chameleon.set_device(rank)
dist.init_process_group("gloo")
x = torch.full((100,), 3.0, device=device)
dist.barrier()
if rank == 1:
    time.sleep(1)  # the other's collective hangs
    os._exit(0)
work = dist.all_reduce(x, async_op=True)
try:
    {abort}
    work.wait()
except RuntimeError as error:
    print("aborted" if "gloo" in str(error) else error)
assert device == "cpu" or _testing.block_state(x)["pins"] == 0
if dist.is_initialized():
    dist.destroy_process_group()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
x.fill_(2)
dist.all_reduce(x)
print(x.sum().item())
dist.destroy_process_group()
"""
ABORTS = {
    "one": "dist.group.WORLD.abort()",
    "all": "dist.distributed_c10d._abort_process_group()",
}


def ended(device, script):
    """What the first of two ranks printed."""
    with started("-c", script, device) as processes:
        output, errors = processes[0].communicate(timeout=90)
    assert processes[0].returncode == 0, errors
    return output


@needs_testing
@pytest.mark.slow
@pytest.mark.parametrize("which", ABORTS)
@pytest.mark.parametrize("device", ["cpu", "chameleon"])
def test_a_group_that_hangs_is_aborted(device, which):
    """As natively: what hung raises, and a new group works."""
    script = ABORTED.replace("{abort}", ABORTS[which])
    assert ended(device, script).split() == ["aborted", "200.0"]


@pytest.mark.parametrize(
    "how", ["raises", "dies", pytest.param("stops", marks=pytest.mark.slow)]
)
def test_the_others_end(how):
    script = TRAINING.replace("{failure}", FAILURES[how])
    with started("-c", script) as processes:
        output, errors = processes[0].communicate(timeout=90)
        if how == "stops":
            processes[1].kill()
        processes[1].communicate(timeout=60)
    assert processes[0].returncode == 1, errors  # no crash
    assert "trained" not in output
    assert "RuntimeError" in errors
    words = "Timed out" if how == "stops" else "losed|Connection reset"
    assert re.search(words, errors)
    if how == "dies":
        assert processes[1].returncode == -signal.SIGKILL
