"""Fixtures: a device with room, and a look at its invariants after each test.

All tests of a process share one device. Tests that need an unused one run in a
process of their own (`fresh`). CHAMELEON_TEST_ADVERSARY says how inconvenient
the cpu runtime is to all of them (backend/runtime/cpu/cpu_adversary.h); it then
checks the order of what is submitted, too.
"""

import gc
import importlib.util
import os
import subprocess
import sys
import time
import types

import emulated_cuda
import pytest
import torch
import torch_chameleon
from support import MIB, WITHOUT_TESTING, evicting
from torch_chameleon import _C

_AMPLE = 256 * MIB


class _NotBuilt(types.ModuleType):
    """In the place of torch_chameleon._testing: skips who uses it."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        pytest.skip(WITHOUT_TESTING, allow_module_level=True)


def pytest_configure(config):
    if importlib.util.find_spec("torch_chameleon._testing") is None:
        sys.modules["torch_chameleon._testing"] = _NotBuilt("_testing")
    if "CHAMELEON_EMULATED" in os.environ:  # see tests/emulated_cuda.py
        torch.cuda.init()
        emulated_cuda.install()
    elif torch.cuda.is_available():  # what is compared with is the CPU
        os.environ.setdefault("CHAMELEON_PHYSICAL_DEVICE", "cpu")
        torch_chameleon.config.physical_device = os.environ[
            "CHAMELEON_PHYSICAL_DEVICE"
        ]
    if adversary := os.environ.get("CHAMELEON_TEST_ADVERSARY"):
        from torch_chameleon import _testing

        _testing.set_cpu_adversary(adversary)
    torch.set_num_threads(min(2, torch.get_num_threads()))
    torch_chameleon.config.hbm_budget = _AMPLE
    # torch.manual_seed() keeps a stack trace for each device that is not there.
    for absent in (torch.cuda, torch.mtia, torch.xpu):
        if not absent.is_available():
            absent.manual_seed_all = lambda seed: None


def pytest_collection_finish():
    gc.collect()
    gc.freeze()  # torch alone has a million objects to walk


@pytest.fixture(autouse=True)
def invariants():
    """Walks the device's invariants after each test; nothing may leak."""
    if torch.chameleon.memory_allocated() > 0:
        gc.collect()
    used_before = _C.first_use() is not None
    live_before = torch.chameleon.memory_allocated()
    yield
    assert torch_chameleon.config.hbm_budget == _AMPLE
    if _C.first_use() is None:
        return
    if used_before:
        _wait_until_freed(live_before)
        assert torch.chameleon.memory_allocated() <= live_before
    torch.chameleon.synchronize()
    _C.check_invariants(0, 2)


def _wait_until_freed(live_bytes):
    """Autograd's thread drops its last references just after backward()."""
    deadline = time.monotonic() + 20
    while torch.chameleon.memory_allocated() > live_bytes:
        gc.collect()
        if time.monotonic() > deadline:
            break


@pytest.fixture
def tight():
    """A function that sets the budget, in bytes, until the test ends."""
    with torch_chameleon.config.patch(hbm_budget=_AMPLE):
        yield lambda size: setattr(torch_chameleon.config, "hbm_budget", size)


@pytest.fixture(params=["never", "all"])
def stress(request):
    """Runs a test twice: with all in place, and evicting before every op."""
    with evicting(request.param):
        yield request.param


@pytest.fixture
def fresh():
    """Runs code in a new interpreter and returns what it printed."""

    def run(code, **environment):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture
def library():
    """A function that makes a torch.library.Library until the test ends."""
    made = []

    def make(namespace="chameleon_test", kind="FRAGMENT"):
        made.append(torch.library.Library(namespace, kind))
        return made[-1]

    yield make
    for one in made:
        one._destroy()
