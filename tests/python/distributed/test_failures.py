"""A rank that raises, or dies, ends the others in time, and none hangs."""

import re
import signal
import subprocess
import sys

import pytest
from ranks import free_port, rank_environment

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


@pytest.mark.parametrize(
    "how", ["raises", "dies", pytest.param("stops", marks=pytest.mark.slow)]
)
def test_the_others_end(how):
    port = free_port()
    script = TRAINING.replace("{failure}", FAILURES[how])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env=rank_environment(rank, 2, port),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        output, errors = processes[0].communicate(timeout=90)
        if how == "stops":
            processes[1].kill()
        processes[1].communicate(timeout=60)
    finally:
        for process in processes:
            process.kill()
    assert processes[0].returncode == 1, errors  # no crash
    assert "trained" not in output
    assert "RuntimeError" in errors
    words = "Timed out" if how == "stops" else "losed|Connection reset"
    assert re.search(words, errors)
    if how == "dies":
        assert processes[1].returncode == -signal.SIGKILL
