"""Importing: what it registers, what it does not touch, what it refuses."""

import pytest
from torch_chameleon._compat import mismatch


def test_no_use_of_the_device(fresh):
    code = """
import torch, torch_chameleon
from torch_chameleon import _C
assert torch.chameleon.is_available()
assert torch.chameleon.device_count() >= 1
assert torch.chameleon.current_device() == 0
assert torch.accelerator.current_accelerator().type == "chameleon"
torch.manual_seed(0)
torch.chameleon.manual_seed(1)
torch.chameleon.initial_seed()
assert torch.chameleon.memory_allocated() == 0
assert torch.chameleon.memory_stats() == {}
assert torch_chameleon.swap_stats()["logical_bytes"] == 0
repr(torch_chameleon.config)
model = torch.nn.Linear(2, 2).to("cpu").double()
assert not torch.chameleon.is_initialized()
assert not torch.chameleon._initialized
assert _C.first_use() is None
torch.empty(1, device="chameleon")
assert torch.chameleon._initialized
print(_C.first_use())
"""
    assert fresh(code)


@pytest.mark.parametrize("device", ["cpu", "simulated"])
def test_neither_driver_nor_toolkit(fresh, device):
    code = f"""
import pathlib
import torch, torch_chameleon
def driver_is_loaded():
    return "libcuda.so" in pathlib.Path("/proc/self/maps").read_text()
assert not driver_is_loaded()
assert not torch.cuda.is_initialized()
torch_chameleon.config.physical_device = "{device}"
print(tuple((torch.ones(2, 3, device="chameleon") @ torch.ones(
    3, 4, device="chameleon")).shape))
assert torch_chameleon._C.physical_device() == "{device}"
assert not driver_is_loaded()
"""
    assert fresh(code, PATH="/nowhere", CUDA_HOME="/nowhere") == "(2, 4)"


def test_seed_before_first_use_is_not_applied_again(fresh):
    code = """
import torch, torch_chameleon
torch.manual_seed(5)
a = torch.rand(3)
b = torch.rand(3, device="chameleon")
torch.manual_seed(5)
assert torch.rand(3).equal(a)
assert torch.rand(3).equal(b.cpu())
print("ok")
"""
    assert fresh(code) == "ok"


def test_autoload_variable_is_restored(fresh):
    code = """
import os
import torch_chameleon, torch
print(os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD"))
"""
    assert fresh(code, TORCH_DEVICE_BACKEND_AUTOLOAD="1") == "1"


@pytest.mark.parametrize("key", ["HBM_BUDGET", "POLICY"])
def test_bad_environment_is_refused(fresh, key):
    code = """
try:
    import torch_chameleon
except Exception as error:
    print(error)
"""
    text = fresh(code, **{f"CHAMELEON_{key}": "nonsense"})
    assert f"CHAMELEON_{key}" in text
    assert "nonsense" in text


def test_matching_torch():
    assert mismatch("2.11.0", True, "2.11.0+cu130", True) is None
    assert mismatch("2.11", True, "2.11.1", True) is None


def test_other_torch():
    text = mismatch("2.11.0", True, "2.12.0+cpu", True)
    assert "built for torch 2.11" in text
    assert "found torch 2.12.0+cpu" in text
    assert 'pip install "torch==2.11.*"' in text


def test_a_minor_release_is_compared_as_a_number():
    assert mismatch("2.1.0", True, "2.11.0", True) is not None


def test_other_abi():
    text = mismatch("2.11.0", True, "2.11.0", False)
    assert "C++11 ABI on" in text
    assert "with it off" in text


def test_unbuilt_package_says_so(fresh, tmp_path):
    code = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: (
    None if name == "torch_chameleon._C" else find(name, *rest)
)
try:
    import torch_chameleon
except ImportError as error:
    print(error)
"""
    assert "torch_chameleon is not built" in fresh(code)
