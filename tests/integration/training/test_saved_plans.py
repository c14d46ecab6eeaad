"""A run that loads an earlier one's plans begins where that one settled."""

import json

import pytest

_PROGRAM = """
import json
import torch, torch_chameleon
from torch import nn
from torch_chameleon import config, profiler

config.physical_device = DEVICE
config.oversubscription = 16
config.hbm_budget = MEBIBYTES << 20
if LOAD:
    assert profiler.load_plans(PATH) > 0
torch.manual_seed(0)
model = nn.Sequential(
    *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(6))
).to("chameleon")
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(2 * WIDTH, WIDTH).to("chameleon")
durations = []
for _ in range(STEPS):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch_chameleon.step()
    durations.append(profiler.last_step()["duration_ns"])
plan = profiler.last_step()["plan"]
if not LOAD:
    assert profiler.save_plans(PATH) > 0
print(json.dumps([durations, plan]))
if DEVICE == "cpu":
    print(torch_chameleon.swap_stats()["evictions"] > 0)
    print(sum(p.detach().double().sum().item() for p in model.parameters()))
"""


def _run(fresh, path, **values):
    head = "\n".join(f"{name} = {value!r}" for name, value in values.items())
    return fresh(f"PATH = {str(path)!r}\n{head}\n{_PROGRAM}").splitlines()


def test_the_next_run_follows_the_plan_from_its_first_known_step(
    tmp_path, fresh
):
    path = tmp_path / "training.plans"
    size = {"DEVICE": "simulated", "WIDTH": 4096, "MEBIBYTES": 1280}
    first = _run(fresh, path, LOAD=False, STEPS=40, **size)
    then = _run(fresh, path, LOAD=True, STEPS=8, **size)
    settled, plan = json.loads(first[-1])
    begun, loaded = json.loads(then[-1])
    assert plan["actions"] > 0
    assert loaded == plan
    assert begun[-1] <= 1.01 * settled[-1]
    assert begun[5] <= 1.01 * settled[-1]


@pytest.mark.parametrize("mebibytes", [5, 6], ids=["fits", "other budget"])
def test_values_are_those_of_any_run(tmp_path, fresh, mebibytes):
    path = tmp_path / "training.plans"
    size = {"DEVICE": "cpu", "WIDTH": 256, "STEPS": 12}
    first = _run(fresh, path, LOAD=False, MEBIBYTES=5, **size)
    then = _run(fresh, path, LOAD=True, MEBIBYTES=mebibytes, **size)
    assert first[-2:] == then[-2:]
    assert first[-2] == "True"


def test_what_is_no_file_of_plans_is_refused(tmp_path, fresh):
    path = tmp_path / "training.plans"
    path.write_bytes(b"torch_chameleon plans 4\nbut no plans")
    said = fresh(f"""
from torch_chameleon import profiler
for path in [{str(path)!r}, "/dev/null"]:
    try:
        profiler.load_plans(path)
    except ValueError as error:
        print(error)
try:
    profiler.save_plans({str(path)!r})
except RuntimeError as error:
    print(error)
""").splitlines()
    assert said == [
        f"'{path}' is damaged: its checksum differs",
        "'/dev/null' is no file that torch_chameleon.profiler.save_plans() of "
        "this version wrote",
        "torch_chameleon.profiler: no plan was made yet; run some steps first",
    ]
    assert path.read_bytes().endswith(b"but no plans")
