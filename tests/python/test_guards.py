"""Ways around the dispatcher say what to do instead."""

import io
import pickle
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch

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
        x.untyped_storage()._share_fd_cpu_,
        x.untyped_storage()._share_filename_cpu_,
        lambda: ForkingPickler(io.BytesIO()).dump(x),
        lambda: ForkingPickler(io.BytesIO()).dump(x[:0].clone()),
        lambda: ForkingPickler(io.BytesIO()).dump(torch.nn.Parameter(x * 1.0)),
    ):
        with pytest.raises(RuntimeError, match=MENTIONS_RESIDENT):
            share()
    assert torch.arange(3).share_memory_().is_shared()


def test_share_memory_does_nothing():
    """As on CUDA: libraries call it on a model before they start workers."""
    x = torch.arange(3, device="chameleon")
    layer = torch.nn.Linear(1, 1).to("chameleon")
    weight = layer.weight
    assert x.share_memory_() is x
    storage = x.untyped_storage()
    assert storage.share_memory_() is storage
    assert layer.share_memory() is layer
    assert layer.weight is weight
    assert x.tolist() == [0, 1, 2]
    assert all(
        p.is_shared() for p in torch.nn.Linear(1, 1).share_memory().parameters()
    )


def test_numpy():
    x = torch.arange(3, device="chameleon")
    for export in (x.numpy, lambda: np.asarray(x)):
        with pytest.raises(TypeError, match=MENTIONS_RESIDENT):
            export()
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
