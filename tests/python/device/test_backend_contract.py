"""What torch asks a PrivateUse1 backend for, and is given.

One test for each row of the table in backend/torch/README.md that no other
module is about.
"""

import inspect
import re
from pathlib import Path

import pytest
import torch
from support import ROOT, on_both, same_bits, values


def test_the_table_names_tests_that_are_there():
    text = (ROOT / "backend" / "torch" / "README.md").read_text()
    table = text.split("## What torch asks for")[1].split("\n## ")[0]
    named = set(re.findall(r"`(?:\w+/)*test_\w+\.py`", table))
    assert len(named) > 10
    for name in named:
        assert (ROOT / "tests" / "python" / name.strip("`")).is_file(), name


# ---- hooks and guard

INCLUDE = Path(torch.__file__).parent / "include"


@pytest.mark.parametrize(
    ("header", "source"),
    [
        ("ATen/detail/AcceleratorHooksInterface.h", "hooks.cpp"),
        ("ATen/detail/PrivateUse1HooksInterface.h", "hooks.cpp"),
        ("c10/core/impl/DeviceGuardImplInterface.h", "guard.cpp"),
    ],
)
def test_every_virtual_function_is_given(header, source):
    """A later torch that asks for more fails here, and gets a row."""
    interface = (INCLUDE / header).read_text()
    interface = interface.split("struct NoOpDeviceGuardImpl")[0]
    asked = set(re.findall(r"virtual [^;{]*?(\w+)\(", interface))
    asked -= {Path(header).stem}  # the destructor
    if "isStreamCapturing" in asked:  # 2.15's; false, as here no graph captures
        asked -= {"isStreamCapturing"}
    text = (ROOT / "backend" / "torch" / source).read_text()
    given = set(
        re.findall(r"(\w+)\([^()]*\)\s*const(?: noexcept)?\s*override", text)
    )
    missing = {name for name in asked if name not in given}
    assert asked
    assert missing == set()


def test_capability():
    dtypes = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert torch.accelerator.get_device_capability("chameleon:0") == {
        "supported_dtypes": dtypes
    }
    for dtype in dtypes - {torch.complex32}:  # which warns
        assert torch.empty(2, dtype=dtype, device="chameleon").dtype == dtype
    assert {torch.float32, torch.bfloat16, torch.float8_e4m3fn} < dtypes
    assert torch.quint8 not in dtypes


def test_native_handle_of_a_stream():
    stream = torch.chameleon.current_stream()
    with pytest.raises(RuntimeError, match="where the physical device is cuda"):
        stream.native_handle  # noqa: B018 (a property)


# ---- ops


def test_lazy_clone():
    def run(device):
        x = values(device, 4, 6).requires_grad_()
        view = x.T[1:4]
        clone = torch._lazy_clone(view)
        assert clone.stride() == view.stride()
        assert clone.storage_offset() == view.storage_offset()
        kept = clone.detach().clone()
        with torch.no_grad():
            x.mul_(2)
        assert same_bits(clone, kept)
        clone.square().sum().backward()
        whole = clone.detach().as_strided((4, 6), (6, 1), 0)
        conjugate = torch._lazy_clone((whole * 1j).conj())
        return clone, whole, conjugate, x.grad

    on_both(run)


# ---- the device module


def test_no_memory_for_this_process():
    """As with torch.cuda, what needs memory then fails, and nothing else."""
    module = torch.chameleon
    try:
        module.set_per_process_memory_fraction(0.0)
        assert module.get_per_process_memory_fraction() == 0
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(1000, device="chameleon")
    finally:
        module.set_per_process_memory_fraction(1.0)
    assert torch.ones(1000, device="chameleon").sum().item() == 1000


@pytest.mark.parametrize("fraction", [0, 1])
def test_a_fraction_is_a_float(fraction):
    with pytest.raises(TypeError, match="must be `float`"):
        torch.chameleon.set_per_process_memory_fraction(fraction)


# ---- torch._dynamo


def test_device_interface():
    from torch._dynamo import device_interface

    found = device_interface.get_interface_for_device("chameleon")
    for device in ("chameleon:0", torch.device("chameleon", 0)):
        assert device_interface.get_interface_for_device(device) is found
    cuda = device_interface.CudaInterface
    asked = {
        name
        for name, member in inspect.getmembers(device_interface.DeviceInterface)
        if not name.startswith("__") and vars(cuda).get(name) is not None
    }
    # Inductor's and Triton's alone: kernels of theirs take addresses.
    asked -= {
        "get_raw_stream",
        "is_triton_capable",
        "raise_if_triton_unavailable",
        "get_cache_system_info",
        "get_multi_processor_count",
        "is_gpu",
        "exposes_streams",
    }
    assert asked <= vars(found).keys()

    assert found.is_available()
    assert found.device_count() == torch.chameleon.device_count()
    assert found.current_device() == 0
    assert found.Worker.current_device() == 0
    found.set_device(0)
    found.Worker.set_device(0)
    found.synchronize()
    assert found.maybe_exchange_device(found.exchange_device(0)) == 0
    assert not found.is_triton_capable()
    x = torch.ones(3, device="chameleon")
    assert found.memory_allocated() == torch.chameleon.memory_allocated() > 0
    assert found.get_compute_capability() == 0
    properties = found.get_device_properties()
    assert properties == found.Worker.get_device_properties(0)
    assert found.is_dtype_supported(torch.bfloat16)
    stream = found.Stream()
    with found.stream(stream), found.device(0):
        assert found.current_stream() == stream
        event = found.Event()
        event.record(stream)
        assert (x + 1).sum().item() == 6
    before = found.current_stream()
    found._set_stream_by_id(
        stream.stream_id, stream.device_index, stream.device_type
    )
    assert found.current_stream() == stream
    found.set_stream(before)


@pytest.mark.slow  # imports Inductor
def test_asking_for_all_interfaces_uses_no_device(fresh):
    """Inductor does so before it compiles anything, for the CPU too."""
    code = """
import torch, torch_chameleon
from torch._inductor.async_compile import caching_device_properties
caching_device_properties()
print(torch_chameleon._C.first_use())
"""
    assert fresh(code) == "None"
