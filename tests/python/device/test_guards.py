"""Ways around the dispatcher say what to do instead."""

import ctypes
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
        x.untyped_storage()._share_cuda_,
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
    assert x.tolist() == [0, 1, 2]
    assert x.numpy(force=True).tolist() == [0, 1, 2]


def test_cuda_array_interface():
    """CuPy, Numba and RAPIDS ask for it; on_as_cuda.py asks as they do."""
    x = torch.arange(3.0, device="chameleon")
    for tensor in (x, x.to_sparse(), x.clone().requires_grad_()):
        assert not hasattr(tensor, "__cuda_array_interface__")
        with pytest.raises(AttributeError, match=MENTIONS_RESIDENT):
            tensor.__cuda_array_interface__  # noqa: B018 (a property)
    with pytest.raises(AttributeError, match="non-CUDA tensor"):
        torch.arange(3).__cuda_array_interface__  # noqa: B018


def test_triton():
    triton = pytest.importorskip("triton")
    kernel = triton.jit(test_triton)  # nothing of it is read
    x = torch.arange(3, device="chameleon")
    for arguments, named in (((x, 3), {}), ((), {"x_ptr": x})):
        with pytest.raises(ValueError, match=MENTIONS_RESIDENT):
            kernel[(1,)](*arguments, **named)


def test_compiled_cuda_kernel():
    """What torch.cuda._compile_kernel returns, without a GPU to make it."""
    kernel = torch.cuda._utils._CudaKernel(None, None)
    with pytest.raises(ValueError, match=MENTIONS_RESIDENT):
        kernel(args=[torch.arange(3, device="chameleon"), 3])


def test_c_functions_of_dlpack():
    """They hand out what torch has, but as no device that anybody computes on.

    TVM FFI calls them. They are found by the type, so no tensor can be asked.
    """
    pointer, integers = ctypes.c_void_p, ctypes.c_int64 * 6
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = pointer, [ctypes.py_object, ctypes.c_char_p]
    capsule = torch.Tensor.__dlpack_c_exchange_api__
    table = (pointer * 6).from_address(get(capsule, b"dlpack_exchange_api"))
    export = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, integers)
    described = integers()
    assert export(table[5])(torch.arange(3, device="chameleon"), described) == 0
    assert (
        described[1] & 0xFFFFFFFF == torch.utils.dlpack.DLDeviceType.kDLExtDev
    )


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
