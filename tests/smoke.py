"""What has to work in every release of torch, in half a minute.

    python tests/smoke.py

Needs nothing but the installed package. Prints the row of install.md's table of
versions: what ran is what it says.
"""

import io
import platform
import sys
import tempfile
from pathlib import Path

import torch
import torch_chameleon
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch_chameleon import _C

CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def same(a, b):
    return torch.equal(a.detach().cpu(), b.detach().cpu())


class Network(nn.Module):
    """One of each: convolution, norm, attention, recurrence, dropout."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 3, padding=1)
        self.norm = nn.BatchNorm2d(64)
        self.attention = nn.TransformerEncoderLayer(64, 4, 1024, 0.1)
        self.lstm = nn.LSTM(64, 96)
        self.out = nn.Linear(96, 10)

    def forward(self, x):
        x = F.gelu(self.norm(self.conv(x)))
        x = self.attention(x.flatten(2).permute(2, 0, 1))
        return self.out(self.lstm(x)[0][-1])


def train(device, optimizer=torch.optim.AdamW, autocast=False):
    torch.manual_seed(0)
    net = Network().to(device)
    step = optimizer(net.parameters(), lr=1e-3, foreach=True)
    x, y = torch.randn(8, 3, 8, 8), torch.randint(0, 10, (8,))
    for _ in range(4):
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(net(x.to(device)), y.to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach=True)
        step.step()
        step.zero_grad()
    return [loss, *net.state_dict().values()]


def same_training(**options):
    """Native bits, without a limit and with half of the peak."""
    native = train("cpu", **options)
    torch_chameleon.reset_swap_stats()
    assert all(map(same, native, train("chameleon", **options)))
    peak = torch_chameleon.swap_stats()["peak_logical_bytes"]
    torch_chameleon.reset_swap_stats()
    with torch_chameleon.config.patch(hbm_budget=peak // 2):
        assert all(map(same, native, train("chameleon", **options)))
        torch.chameleon.synchronize()
        stats = torch_chameleon.swap_stats()
    assert stats["evictions"] > 0
    assert stats["peak_resident_bytes"] <= peak // 2
    _C.check_invariants(0, 2)


@check
def training():
    same_training()
    same_training(optimizer=torch.optim.SGD)


@check
def bfloat16():
    same_training(autocast=True)


@check
def device_module():
    assert torch.accelerator.current_accelerator().type == "chameleon"
    assert torch.get_device_module("chameleon") is torch.chameleon
    x = torch.ones(1 << 20, device="chameleon")
    assert torch.chameleon.memory_allocated() >= x.nbytes
    assert torch.accelerator.memory_allocated() >= x.nbytes
    free, total = torch.chameleon.mem_get_info()
    assert 0 < free < total
    stream = torch.chameleon.Stream()
    with stream:
        y = x + 1
    event = stream.record_event()
    event.synchronize()
    assert same(y, torch.full((1 << 20,), 2.0))


@check
def saving():
    x = torch.arange(10.0, device="chameleon")
    file = io.BytesIO()
    torch.save({"x": x}, file)
    file.seek(0)
    assert same(torch.load(file)["x"], x)
    file.seek(0)
    assert torch.load(file, map_location="cpu")["x"].device.type == "cpu"


@check
def random_numbers():
    torch.manual_seed(3)
    native = torch.randn(100), torch.randperm(50), torch.rand(3).bernoulli()
    torch.manual_seed(3)
    ours = (
        torch.randn(100, device="chameleon"),
        torch.randperm(50, device="chameleon"),
        torch.rand(3, device="chameleon").bernoulli(),
    )
    assert all(map(same, native, ours))


@check
def refusals():
    x = torch.ones(2, device="chameleon")
    for use in (lambda: x.numpy(), lambda: x + torch.ones(2)):
        try:
            use()
        except (TypeError, RuntimeError):
            continue
        raise AssertionError("not refused")


@check
def native_access():
    x = torch.ones(8, device="chameleon")
    with torch_chameleon.resident(x) as (native,):
        native.mul_(3)
    assert same(x, torch.full((8,), 3.0))


@check
def profile_and_trace():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        for _ in range(3):
            train("chameleon")
            torch_chameleon.step()
        torch_chameleon.profiler.export_trace(str(path))
        assert path.stat().st_size > 0
    with torch.profiler.profile() as profile:
        train("chameleon")
    assert any("addmm" in row.key for row in profile.key_averages())


def main():
    torch.set_num_threads(1)
    torch_chameleon.config.physical_device = "cpu"
    torch_chameleon.config.hbm_budget = "256MiB"
    failed = []
    for function in CHECKS:
        try:
            function()
        except Exception as error:
            failed.append(function.__name__)
            print(f"{function.__name__}: {type(error).__name__}: {error}")
    result = f"{len(CHECKS) - len(failed)} of {len(CHECKS)}"
    print(f"| {torch.__version__} | {platform.python_version()} | {result} |")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
