"""CHAMELEON_DEBUG: everything is checked, and no bit is another."""

import os
import signal
import subprocess
import sys

import pytest
from support import ROOT

_TESTS = ROOT / "tests"

_TRAINING = f"""
import sys
sys.path[:0] = {[str(_TESTS / "integration"), str(_TESTS)]!r}
import torch_chameleon
from trainings import *
with budget(budget_for("gpt_adamw", 3)):
    results = TRAININGS["gpt_adamw"]("chameleon")
print(torch_chameleon.swap_stats()["faults"] > 0)
print(differences("gpt_adamw", results))
"""


@pytest.mark.parametrize(
    "every", ["1", pytest.param("50", marks=pytest.mark.slow)]
)
def test_a_training_has_the_native_bits(fresh, every):
    lines = fresh(_TRAINING, CHAMELEON_DEBUG=every).splitlines()
    assert lines[-2:] == ["True", "[]"]


@pytest.mark.slow
def test_on_a_simulated_gpu(fresh):
    code = """
import torch, torch_chameleon
torch_chameleon.config.hbm_budget = "64MiB"
net = torch.nn.Linear(2048, 2048).to("chameleon")
for _ in range(3):
    net(torch.zeros(1024, 2048, device="chameleon")).sum().backward()
print(torch_chameleon.swap_stats()["evictions"] > 0)
"""
    assert (
        fresh(
            code, CHAMELEON_DEBUG="1", CHAMELEON_PHYSICAL_DEVICE="simulated"
        ).splitlines()[-1]
        == "True"
    )


def test_freed_memory_cannot_be_read():
    """Whoever kept its address is stopped where it is used."""
    code = """
import torch, torch_chameleon
x = torch.ones(1 << 20, device="chameleon")
with torch_chameleon.resident(x) as (native,):
    address = native.data_ptr()
del native, x
torch.chameleon.synchronize()
torch.chameleon.empty_cache()
torch.chameleon.synchronize()
import ctypes
print(ctypes.c_float.from_address(address + (1 << 21)).value)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "CHAMELEON_DEBUG": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGSEGV, done.stdout
