"""Ways around the dispatcher say what to do instead."""

import io
import pickle
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
import torch_chameleon
from support import MIB
from torch_chameleon import _C, resident

MENTIONS_RESIDENT = r"torch_chameleon\.resident"


def test_dlpack():
    x = torch.arange(3, device="chameleon")
    for export in (
        x.__dlpack__,
        lambda: torch.utils.dlpack.to_dlpack(x),
        lambda: torch.to_dlpack(x),
        lambda: torch.from_dlpack(x),
        lambda: np.from_dlpack(x),
    ):
        with pytest.raises((BufferError, RuntimeError, TypeError)) as caught:
            export()
        assert "resident" in str(caught.value)


def test_dlpack_of_others():
    x = torch.arange(3)
    assert torch.from_dlpack(x).data_ptr() == x.data_ptr()
    assert np.from_dlpack(x).tolist() == [0, 1, 2]


def test_sharing_between_processes():
    x = torch.arange(3, device="chameleon")
    for share in (
        x.share_memory_,
        x.untyped_storage().share_memory_,
        torch.nn.Linear(1, 1).to("chameleon").share_memory,
        lambda: ForkingPickler(io.BytesIO()).dump(x),
        lambda: ForkingPickler(io.BytesIO()).dump(torch.nn.Parameter(x * 1.0)),
    ):
        with pytest.raises(RuntimeError, match=MENTIONS_RESIDENT):
            share()
    assert torch.arange(3).share_memory_().is_shared()


def test_numpy():
    x = torch.arange(3, device="chameleon")
    with pytest.raises(TypeError, match=r"\.cpu\(\)"):
        x.numpy()
    with pytest.raises(TypeError, match=r"\.cpu\(\)"):
        np.asarray(x)
    assert not hasattr(x, "__cuda_array_interface__")
    assert x.tolist() == [0, 1, 2]
    assert x.numpy(force=True).tolist() == [0, 1, 2]


def test_storage_elements():
    storage = torch.arange(3, dtype=torch.uint8, device="chameleon")
    storage = storage.untyped_storage()
    assert storage.tolist() == [0, 1, 2]
    assert storage[1] == 1
    storage[1] = 9
    assert list(storage) == [0, 9, 2]


def test_ordinary_pickle_works():
    x = torch.arange(3, device="chameleon")
    assert pickle.loads(pickle.dumps(x)).is_chameleon


def test_resident():
    x = torch.zeros(4, 3, device="chameleon")
    with resident(x, x[1:], x.t()) as (native, view, transposed):
        assert native.device.type == _C.physical_device()
        assert view.data_ptr() == native[1:].data_ptr()
        assert transposed.stride() == (1, 3)
        native.numpy()[0] = 5
        view.fill_(2)
        assert _C.block_state(x)["state"] == "resident"
        assert _C.block_state(x)["pins"] > 0
    assert x.tolist() == [[5] * 3] + [[2] * 3] * 3
    assert _C.block_state(x)["pins"] == 0


def test_resident_is_not_evicted(tight):
    x = torch.full((MIB,), 7, dtype=torch.uint8, device="chameleon")
    tight(8 * MIB)
    with resident(x) as (native,):
        address = native.data_ptr()
        for _ in range(4):
            torch.ones(3 * MIB, dtype=torch.uint8, device="chameleon").add_(1)
        assert native.data_ptr() == address
        assert native.eq(7).all()


def test_resident_ends_with_an_exception():
    x = torch.zeros(4, device="chameleon")
    with pytest.raises(KeyError), resident(x):
        raise KeyError
    assert _C.block_state(x)["pins"] == 0


def test_resident_refuses_others():
    with pytest.raises(ValueError, match="cpu"):
        resident(torch.ones(1))
    x = torch.zeros(4, device="chameleon")
    both = resident(x)
    with both, pytest.raises(RuntimeError, match="already"):
        both.__enter__()


def test_too_much_to_be_resident(tight):
    parts = [
        torch.zeros(3 * MIB, dtype=torch.uint8, device="chameleon")
        for _ in range(4)
    ]
    tight(8 * MIB)
    together = resident(*parts)
    with pytest.raises(torch.OutOfMemoryError, match="hbm_budget"), together:
        pass
    for part in parts:
        assert _C.block_state(part)["pins"] == 0


def test_readme_example():
    x = torch.zeros(3, device="chameleon")
    with torch_chameleon.resident(x) as (native,):
        torch.from_dlpack(native).add_(1)
    assert x.tolist() == [1, 1, 1]
