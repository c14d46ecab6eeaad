"""The exported step is the step that ran: its memory, value by value."""

import json

import pytest

_SCRIPT = """
import json
import torch, torch_chameleon
from torch import nn
from torch.nn import functional as F
from torch_chameleon import config, profiler

config.hbm_budget = 1 << 30
torch.manual_seed(0)

# What needs memory that no op makes: contiguous(), float(), copies from CPU.
class Mix(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        y = self.a(x).transpose(1, 2).contiguous().transpose(1, 2)
        return self.b(y.to(torch.float64).square().to(torch.float32)) + x

model = nn.Sequential(*(Mix(96) for _ in range(4))).to("chameleon")
optimizer = torch.optim.AdamW(model.parameters())
peaks = []
for _ in range(8):
    torch_chameleon.reset_swap_stats()
    x = torch.randn(16, 64, 96).to("chameleon")
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    del loss, x
    peaks.append(torch_chameleon.swap_stats()["peak_logical_bytes"])
    torch_chameleon.step()
profiler.export_trace(PATH)
print(json.dumps(peaks))
"""


def peak_of(ops):
    """Most bytes of storages that live at a time; how many of them there are.

    What is created later than it is freed lives across the step's end.
    """
    sizes = {key: size for op in ops for key, size in op["in"] + op["out"]}
    created = {key for op in ops for key, _ in op["out"]}
    live = dict.fromkeys(sizes.keys() - created)
    peak, count = 0, 0
    for _ in range(2):
        for op in ops:
            live.update((key, None) for key, _ in op["out"])
            total = sum(sizes[key] for key in live)
            peak, count = max((peak, count), (total, len(live)))
            for key in op["free"]:
                live.pop(key, None)
    return peak, count


def test_its_peak_is_that_of_the_run(tmp_path, fresh):
    path = str(tmp_path / "step.jsonl")
    peaks = json.loads(fresh(f"PATH = {path!r}\n" + _SCRIPT).splitlines()[-1])
    assert len(set(peaks[2:])) == 1
    with open(path) as lines:
        ops = [op for op in map(json.loads, lines) if "op" in op]
    assert any(op.get("fresh") for op in ops)
    peak, count = peak_of(ops)
    # A trace counts rounded sizes; all else is equal.
    assert 0 <= peak - peaks[-1] < 512 * count


_TIMES = """
import json
import torch, torch_chameleon
from torch import nn
from torch_chameleon import config, profiler

config.physical_device, config.recompute = "simulated", "off"
config.oversubscription = 64

def training(name):
    if name == "convolutions":
        layers = [nn.Conv2d(64, 64, 3, padding=1) for _ in range(6)]
        x, make = torch.zeros(8, 64, 56, 56), torch.optim.Adam
    else:
        layers = [nn.Linear(2048, 2048) for _ in range(8)]
        x, make = torch.zeros(256, 2048), torch.optim.AdamW
        if name == "momentum":
            make = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)
    model = nn.Sequential(*layers)
    return model, x, make(model.parameters())

config.hbm_budget = "8GiB"
with torch.device("chameleon"):
    model, x, optimizer = training(NAME)
for k in (1, 1.5, 1.25):
    for step in range(12):
        torch_chameleon.reset_swap_stats()
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        peak = torch_chameleon.swap_stats()["peak_logical_bytes"]
        if k > 1 and step == 0:
            config.hbm_budget = int(peak / k)
    profiler.export_trace(PATH)
    with open(PATH) as lines:
        rows = [json.loads(line) for line in lines]
    times = [row["dur_ns"] for row in rows if "dur_ns" in row]
    compute_ns = profiler.last_step()["compute_ns"]
    print(json.dumps([len(times), sum(times), compute_ns]))
"""


@pytest.mark.parametrize("name", ["convolutions", "adamw", "momentum"])
def test_its_times_are_those_of_the_run(name, tmp_path, fresh):
    """Where time is modelled, to the nanosecond that each op is rounded by."""
    path = str(tmp_path / "step.jsonl")
    printed = fresh(f"PATH, NAME = {path!r}, {name!r}\n" + _TIMES)
    for line in printed.splitlines()[-3:]:
        ops, summed_ns, compute_ns = json.loads(line)
        assert ops > 20
        assert abs(summed_ns - compute_ns) <= ops


_VARYING = """
import json
import torch, torch_chameleon
from torch import nn
from torch_chameleon import config, profiler

config.physical_device, config.recompute = "simulated", RECOMPUTE
config.oversubscription = 64
config.hbm_budget = "8GiB"
with torch.device("chameleon"):
    layer = lambda: nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
    model = nn.Sequential(layer(), layer(), layer())
    optimizer = torch.optim.AdamW(model.parameters())
for step, length in enumerate(LENGTHS):
    torch_chameleon.reset_swap_stats()
    x = torch.empty(16, length, 256, device="chameleon")
    model(x).square().mean().backward()
    del x
    optimizer.step()
    optimizer.zero_grad()
    stats = torch_chameleon.swap_stats()
    if step == 0:
        config.hbm_budget = int(stats["peak_logical_bytes"] / K)
    profiler.export_trace(PATH)
    with open(PATH) as lines:
        ops = [op for op in map(json.loads, lines) if "op" in op]
    compute_ns = profiler.last_step()["compute_ns"] - stats["rerun_ns"]
    print(json.dumps([ops, compute_ns, stats["peak_logical_bytes"]]))
"""


def varying(fresh, path, recompute, lengths, k=2):
    values = f"PATH, RECOMPUTE, LENGTHS = {path!r}, {recompute!r}, {lengths}\n"
    values += f"K = {k}\n"
    return [json.loads(line) for line in fresh(values + _VARYING).splitlines()]


def assert_times_are(ops, compute_ns):
    assert abs(sum(op["dur_ns"] for op in ops) - compute_ns) <= len(ops)


@pytest.mark.parametrize("k", [0.5, 2])
def test_a_step_in_other_sizes_is_itself(k, tmp_path, fresh):
    """Sizes that come again are a path, others a variant of a known one."""
    lengths = [64, 64, 64, 60, 66, 60, 60, 61, 66, 59]
    path = str(tmp_path / "step.jsonl")
    for ops, compute_ns, peak in varying(fresh, path, "off", lengths, k)[2:]:
        assert_times_are(ops, compute_ns)
        traced, count = peak_of(ops)
        assert 0 <= traced - peak < 512 * count


_PLANNED = """
import json
import torch, torch_chameleon
from torch import nn
from torch_chameleon import config, profiler

config.physical_device, config.recompute = "simulated", "off"
config.oversubscription = 64
config.hbm_budget = "64GiB"
with torch.device("chameleon"):
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8)))
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.zeros(512, 2048)
for step in range(14):
    torch_chameleon.reset_swap_stats()
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 1:
        peak = torch_chameleon.swap_stats()["peak_logical_bytes"]
        config.hbm_budget = int(peak / 1.5)
last = profiler.last_step()
print(json.dumps([last["plan"]["modelled_duration_ns"], last["duration_ns"]]))
"""


def test_a_plan_soon_has_the_times_of_the_run(fresh):
    """Nobody waits for the device, so that its ops are timed late."""
    modelled_ns, duration_ns = json.loads(fresh(_PLANNED))
    assert modelled_ns == pytest.approx(duration_ns, rel=0.05)


def test_ops_that_ran_again_are_not_in_it(tmp_path, fresh):
    path = str(tmp_path / "step.jsonl")
    ops, compute_ns, _ = varying(fresh, path, "auto", [64] * 8)[-1]
    assert_times_are(ops, compute_ns)
