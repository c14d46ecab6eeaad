"""Processes of one machine that torchrun starts: devices, budgets, doctor."""

import os
import pathlib
import subprocess

import pytest
import scripted_checks
from support import torchrun

SCRIPT = pathlib.Path(__file__).with_name("on_local_ranks.py")
CHECKS = [
    "the_launcher_says_how_many_there_are",
    "what_makes_no_sense_is_said_at_the_first_use",
    "a_rank_uses_its_own_device",
    "the_first_use_fixed_it",
    "the_doctor_says_the_share",
]


@pytest.fixture(scope="module")
def outcomes(request):
    return scripted_checks.outcomes(SCRIPT, request, "late devices=2")


@pytest.mark.parametrize("physical", scripted_checks.PHYSICAL)
@pytest.mark.parametrize("check", CHECKS)
def test_as_one_of_two_ranks(outcomes, physical, check):
    assert outcomes(physical)[check] == "ok"


def test_no_check_is_left_out(outcomes):
    assert sorted(outcomes("cpu")) == sorted(CHECKS)


# What scripts for several GPUs begin with, word for word.
RANK = """
import os, torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("gloo")
init_device_mesh("chameleon", (2,))
x = torch.full((3,), float(local_rank), device="cuda")
assert x.device == torch.device("cuda", local_rank), x.device
model = torch.nn.Linear(3, 3).to("cuda")
assert model.weight.device.index == local_rank
print(f"rank {local_rank} of {torch.cuda.device_count()}: {x.sum().item()}")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_torchrun_starts_two(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(RANK)
    done = subprocess.run(
        torchrun(2, script),
        env={
            **os.environ,
            "CHAMELEON_AS_CUDA": "1",
            "CHAMELEON_AUTOLOAD": "1",
            "CHAMELEON_PHYSICAL_DEVICE": "cpu",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = sorted(done.stdout.splitlines())
    assert said == ["rank 0 of 2: 0.0", "rank 1 of 2: 3.0"]
