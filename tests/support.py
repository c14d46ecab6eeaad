"""Helpers of all tests in Python."""

import contextlib
import importlib.util
import itertools
import pathlib
import subprocess
import sys

import pytest
import torch
import torch_chameleon
from torch._C._profiler import _EventType

ROOT = pathlib.Path(__file__).resolve().parents[1]  # of the checkout
MIB = 1 << 20

WITHOUT_TESTING = "built without CHAMELEON_TESTING=1"
# For tests whose other processes import torch_chameleon._testing; to those that
# import it themselves conftest.py sees.
needs_testing = pytest.mark.skipif(
    importlib.util.find_spec("torch_chameleon._testing") is None,
    reason=WITHOUT_TESTING,
)

# What the cpu runtime may do at worst (backend/runtime/cpu/cpu_adversary.h).
ADVERSARIES = [
    "copies=late,seed=1",
    "copies=reordered,seed=2",
    "copies=on_await",
    "compute_delay=4",
    "copies=reordered,compute_delay=3,poison=1,seed=3",
]


@contextlib.contextmanager
def evicting(which, seed=0):
    """Evicts before every op: "all" blocks, "random" ones, or "never" any."""
    from torch_chameleon import _testing  # not in every build

    torch.chameleon.init()
    _testing.set_stress(which, seed)
    try:
        yield
    finally:
        _testing.set_stress("never", 0)


def shared_library(source, folder, *options):
    """Compiles a C file; the library's path."""
    library = folder / f"{source.stem}.so"
    build = ["cc", "-O1", "-shared", "-fPIC", "-o", library, source]
    subprocess.run([*build, "-lpthread", *options], check=True)
    return library


@contextlib.contextmanager
def dropping(which, seed=0):
    """Records every op that may run again, and drops what they made.

    Before every op: "all" that can be, "random" tensors, or nothing ("record").
    """
    from torch_chameleon import _testing  # not in every build

    torch.chameleon.init()
    _testing.set_drop_stress(which, seed)
    try:
        yield
    finally:
        _testing.set_drop_stress("never", 0)


def torchrun(ranks, *program):
    """The command that starts a program so many times on this machine."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(ranks), *map(str, program)),
    ]


def values(device, *shape, seed=0):
    """Random numbers, the same on every device."""
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draws).to(device)


def packed(tensor):
    """All elements in a row; contiguous() keeps odd strides of one element."""
    return tensor.flatten().clone(memory_format=torch.contiguous_format)


_ROWS = ("crow_indices", "col_indices", "values")
_COLUMNS = ("ccol_indices", "row_indices", "values")
PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: _ROWS,
    torch.sparse_bsr: _ROWS,
    torch.sparse_csc: _COLUMNS,
    torch.sparse_bsc: _COLUMNS,
}


def same_bits(a, b):
    """Whether two tensors, wherever they are, have the same bits."""
    a, b = a.detach().cpu(), b.detach().cpu()
    if a.dtype != b.dtype or a.shape != b.shape or a.layout != b.layout:
        return False
    if a.layout in PARTS:
        return all(
            same_bits(getattr(a, part)(), getattr(b, part)())
            for part in PARTS[a.layout]
        )
    return torch.equal(
        packed(a).view(torch.uint8),
        packed(b).view(torch.uint8),
    )


def moved(action, device=0):
    """Counters that an action adds to: {name: difference}."""
    torch.chameleon.synchronize()
    before = torch_chameleon.swap_stats(device)
    action()
    torch.chameleon.synchronize()
    after = torch_chameleon.swap_stats(device)
    return {key: after[key] - before[key] for key in after}


def cpu_peak_bytes(action):
    """By how much an action raised torch's memory on the CPU at most."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        profile_memory=True,
        acc_events=True,
    ) as profiled:
        action()
    pending = profiled.profiler.kineto_results.experimental_event_tree()
    changes = []
    while pending:
        event = pending.pop()
        pending += event.children
        fields = event.extra_fields
        if event.tag == _EventType.Allocation and fields.device.type == "cpu":
            changes.append((event.start_time_ns, fields.alloc_size))
    changes.sort(key=lambda change: change[0])
    sizes = [size for _, size in changes]
    return max(itertools.accumulate(sizes), default=0)


def on_both(function):
    """Calls with a device, natively and on chameleon; returns the latter.

    What comes back, tensors and others, has to be the same: bits, strides, and
    whether a gradient is required.
    """
    native, ours = function("cpu"), function("chameleon")
    assert len(native) == len(ours) > 0
    for one, other in zip(native, ours, strict=True):
        if isinstance(one, torch.Tensor):
            assert other.is_chameleon
            assert other.stride() == one.stride()
            assert other.requires_grad == one.requires_grad
            assert same_bits(one, other)
        else:
            assert one == other
    return ours
