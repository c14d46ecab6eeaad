"""What test_local_ranks.py runs: one of two ranks, as torchrun starts them.

Prints what became of each check, as JSON in the last line.
"""

import json
import os
import traceback

import emulated_cuda
import pytest
import torch
import torch_chameleon
from torch_chameleon import _C, doctor

EMULATED = emulated_cuda.is_present()
if EMULATED:
    emulated_cuda.install()
else:
    torch_chameleon.config.physical_device = "cpu"
outcomes = {}


def check(function):
    try:
        function()
        outcomes[function.__name__] = "ok"
    except Exception:
        outcomes[function.__name__] = traceback.format_exc(limit=-3)


def launched(world_size, rank):
    os.environ["LOCAL_WORLD_SIZE"] = world_size
    os.environ["LOCAL_RANK"] = rank


@check
def the_launcher_says_how_many_there_are():
    for world_size in (1, 2, 4):
        launched(str(world_size), "0")
        devices = 2 if EMULATED else world_size
        assert torch.chameleon.device_count() == devices
        assert torch.accelerator.device_count() == devices
        with pytest.raises(RuntimeError, match=f"index {devices} does not"):
            torch.chameleon.set_device(devices)
    assert _C.first_use() is None


@check
def what_makes_no_sense_is_said_at_the_first_use():
    for world_size, rank, said in (
        ("two", "0", 'LOCAL_WORLD_SIZE = "two": must be a whole number, 1'),
        ("0", "0", 'LOCAL_WORLD_SIZE = "0": must be a whole number, 1'),
        ("2", "2", 'LOCAL_RANK = "2": must be a whole number from 0 to 1'),
    ):
        launched(world_size, rank)
        assert torch.chameleon.device_count() == (2 if EMULATED else 1)
        with pytest.raises(ValueError, match=said):
            torch.ones(1, device="chameleon")
        with pytest.raises(ValueError, match=said):
            torch.chameleon.set_device(9)
    assert _C.first_use() is None


@check
def a_rank_uses_its_own_device():
    launched("2", "1")
    torch.chameleon.set_device(1)
    own = torch.device("chameleon:1")
    model = torch.nn.Linear(3, 2).to("chameleon")
    loss = model(torch.ones(4, 3, device="chameleon")).sum()
    loss.backward()
    assert loss.device == model.weight.device == model.weight.grad.device
    assert loss.device == own == torch.empty(2, device="chameleon:1").device
    assert model.bias.grad.tolist() == [4, 4]
    assert torch.chameleon.memory_allocated() > 0
    assert torch.chameleon.memory_allocated(0) == 0
    assert _C.memory_sharers(1) == ((1, 2) if EMULATED else (2, 2))
    assert _C.local_ranks() == (1, 2)


@check
def the_first_use_fixed_it():
    launched("4", "5")
    assert torch.chameleon.device_count() == 2
    assert _C.local_ranks() == (1, 2)
    other = torch.ones(2, device="chameleon:0")  # with a budget of its own
    assert other.sum().item() == 2
    assert torch.chameleon.current_device() == 1


@check
def the_doctor_says_the_share():
    facts = doctor._device()
    hbm = facts["hbm_budget"]
    assert facts["host_budget"].endswith("iB: 1 of 2 ranks on this machine")
    if EMULATED:
        assert hbm.endswith("iB")
    else:
        assert hbm == "512.00 MiB: 1 of 2 ranks on this machine"
    with torch_chameleon.config.patch(host_budget="1GiB"):
        assert doctor._device()["host_budget"] == (
            "1.00 GiB: set, in each of 2 ranks on this machine"
        )


print(json.dumps(outcomes))
