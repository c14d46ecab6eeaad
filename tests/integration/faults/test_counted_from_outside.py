"""The budgets, counted by somebody who shares no code with the project.

A library loaded before libc counts the memory that the extension maps
(`mapping_counter.c`), while a training runs at four times its budget.
"""

import json
import pathlib
import shutil

import pytest
from support import MIB, shared_library

HBM_BUDGET, HOST_BUDGET = 16 * MIB, 256 * MIB

TRAINING = f"""
import ctypes, json, torch, torch_chameleon
torch_chameleon.config.hbm_budget = {HBM_BUDGET}
torch_chameleon.config.host_budget = {HOST_BUDGET}
torch_chameleon.config.oversubscription = 8.0
pair = lambda: (torch.nn.Linear(512, 512), torch.nn.GELU())
layers = [layer for _ in range(8) for layer in pair()]
model = torch.nn.Sequential(*layers).to("chameleon")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.rand(1024, 512, device="chameleon")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
counter = ctypes.CDLL(None)
for name in ("device", "host"):
    getattr(counter, f"counted_peak_{{name}}_bytes").restype = ctypes.c_uint64
stats = torch_chameleon.swap_stats()
print(json.dumps({{
    "device": counter.counted_peak_device_bytes(),
    "host": counter.counted_peak_host_bytes(),
    "peak_logical": stats["peak_logical_bytes"],
    "peak_resident": stats["peak_resident_bytes"],
    "peak_host": stats["peak_host_bytes"],
}}))
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")
def test_memory_taken_stays_within_the_budgets(fresh, tmp_path):
    source = pathlib.Path(__file__).with_name("mapping_counter.c")
    library = shared_library(source, tmp_path, "-ldl")
    counted = json.loads(fresh(TRAINING, LD_PRELOAD=str(library)))
    assert counted["peak_logical"] > 3 * HBM_BUDGET
    assert 0 < counted["device"] <= HBM_BUDGET
    assert counted["peak_resident"] <= counted["device"]
    assert 0 < counted["host"] <= HOST_BUDGET
    assert counted["peak_host"] <= counted["host"]
