"""torch.chameleon has what generic code asks of a device module."""

import pytest
import torch
from torch_chameleon import _C
from torch_chameleon.chameleon._utils import _get_device_index

NEEDED = [
    "is_available",
    "is_initialized",
    "init",
    "_lazy_init",
    "_is_in_bad_fork",
    "device_count",
    "current_device",
    "set_device",
    "device",
    "device_of",
    "synchronize",
    "_exchange_device",
    "_maybe_exchange_device",
    "get_device_properties",
    "get_device_name",
    "get_device_capability",
    "mem_get_info",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "initial_seed",
    "get_rng_state",
    "get_rng_state_all",
    "set_rng_state",
    "set_rng_state_all",
    "Stream",
    "Event",
    "stream",
    "current_stream",
    "default_stream",
    "set_stream",
    "StreamContext",
    "get_amp_supported_dtype",
    "is_bf16_supported",
    "empty_cache",
    "memory_stats",
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "reset_peak_memory_stats",
    "reset_accumulated_memory_stats",
    "memory_summary",
    "OutOfMemoryError",
]


@pytest.mark.parametrize("name", NEEDED)
def test_has(name):
    assert callable(getattr(torch.chameleon, name))


def test_public_names_exist():
    for name in torch.chameleon.__all__:
        assert getattr(torch.chameleon, name).__doc__


def test_registered():
    assert torch.get_device_module("chameleon") is torch.chameleon
    assert torch.accelerator.current_accelerator().type == "chameleon"
    assert torch.accelerator.device_count() == torch.chameleon.device_count()
    with pytest.raises(AttributeError, match=r"torch\.chameleon"):
        torch.chameleon.no_such_thing  # noqa: B018


def test_generated_methods():
    tensor = torch.arange(3).chameleon()
    assert tensor.is_chameleon
    assert tensor.device == torch.device("chameleon", 0)
    assert not tensor.cpu().is_chameleon
    assert torch.nn.Linear(1, 1).chameleon().weight.is_chameleon
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    assert packed.chameleon().is_chameleon
    assert tensor.untyped_storage().is_chameleon
    assert torch.arange(3).untyped_storage().chameleon().is_chameleon


def test_current_device():
    assert torch.chameleon.current_device() == 0
    torch.chameleon.set_device("chameleon:0")
    torch.chameleon.set_device(-1)
    assert torch.chameleon._exchange_device(0) == 0
    assert torch.chameleon._exchange_device(-1) == 0
    with torch.chameleon.device(0), torch.chameleon.device(None):
        assert torch.chameleon.current_device() == 0
    with torch.chameleon.device_of(torch.ones(1, device="chameleon")):
        assert torch.chameleon.current_device() == 0
    with torch.chameleon.device_of(torch.ones(1)):
        assert torch.chameleon.current_device() == 0
    with torch.device("chameleon"):
        assert torch.ones(1).is_chameleon


def test_no_such_device():
    count = torch.chameleon.device_count()
    with pytest.raises(RuntimeError):
        torch.chameleon.set_device(count)
    with pytest.raises(RuntimeError):
        torch.empty(1, device=f"chameleon:{count}")
    with pytest.raises(AssertionError, match="Invalid device id"):
        torch.chameleon.get_device_properties(count)


def test_device_index():
    assert _get_device_index(3) == 3
    assert _get_device_index("chameleon:1") == 1
    assert _get_device_index(torch.device("chameleon", 1)) == 1
    assert _get_device_index("chameleon", optional=True) == 0
    assert _get_device_index(None, optional=True) == 0
    assert _get_device_index("cpu", allow_cpu=True) == -1
    with pytest.raises(ValueError, match="specified index"):
        _get_device_index("chameleon")
    with pytest.raises(ValueError, match="chameleon device"):
        _get_device_index("cpu")


def test_properties():
    properties = torch.chameleon.get_device_properties()
    free, limit = torch.chameleon.mem_get_info()
    assert properties.total_memory == limit
    assert 0 < free <= limit
    assert properties.name == torch.chameleon.get_device_name(0)
    assert _C.physical_device() in properties.name
    assert torch.chameleon.get_device_capability() == (0, 0)


def test_mem_get_info_is_about_the_limit():
    free, limit = torch.chameleon.mem_get_info()
    held = torch.empty(1 << 20, dtype=torch.uint8, device="chameleon")
    assert torch.chameleon.mem_get_info() == (free - (1 << 20), limit)
    assert torch.accelerator.memory.get_memory_info() == (
        free - (1 << 20),
        limit,
    )
    del held


def test_autocast():
    x = torch.ones(4, 4, device="chameleon")
    for dtype in torch.chameleon.get_amp_supported_dtype():
        with torch.autocast("chameleon", dtype=dtype):
            assert (x @ x).dtype == dtype
            assert torch.trace(x.to(dtype)).dtype == torch.float32
        assert (x @ x).dtype == torch.float32


def test_forked_child_inherits_unused(fresh):
    code = """
import os, torch, torch_chameleon
pid = os.fork()
if pid == 0:
    assert not torch.chameleon._is_in_bad_fork()
    os._exit(0 if torch.ones(2, device="chameleon").sum().item() == 2 else 1)
print(os.waitpid(pid, 0)[1])
"""
    assert fresh(code) == "0"


def test_forked_child_of_a_used_device_gets_one_error(fresh):
    code = """
import os, torch, torch_chameleon
held = torch.ones(2, device="chameleon")
pid = os.fork()
if pid == 0:
    assert torch.chameleon._is_in_bad_fork()
    torch.manual_seed(0)
    try:
        torch.ones(2, device="chameleon")
    except RuntimeError as error:
        print(error, flush=True)
        os._exit(0)
    os._exit(1)
assert os.waitpid(pid, 0)[1] == 0
"""
    assert "fork" in fresh(code)
