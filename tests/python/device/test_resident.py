"""`resident`: native tensors for code that bypasses the dispatcher."""

import asyncio
import ctypes
import gc
import threading

import numpy as np
import pytest
import torch
import torch_chameleon
from support import MIB, moved, same_bits, shared_library
from torch_chameleon import _C, _testing, resident


def pins(tensor):
    return _testing.block_state(tensor)["pins"]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """A compiled kernel that knows addresses and nothing of torch."""
    folder = tmp_path_factory.mktemp("kernel")
    source = folder / "axpy.c"
    source.write_text(
        "void axpy(long n, float a, const float* x, float* y)"
        " { for (long i = 0; i < n; i++) y[i] += a * x[i]; }"
    )
    axpy = ctypes.CDLL(str(shared_library(source, folder))).axpy
    pointer = ctypes.c_void_p
    axpy.argtypes = [ctypes.c_long, ctypes.c_float, pointer, pointer]

    def call(a, x, y):
        axpy(x.numel(), a, x.data_ptr(), y.data_ptr())

    return call


def test_resident():
    x = torch.zeros(4, 3, device="chameleon")
    with resident(x, x[1:], x.t()) as (native, view, transposed):
        assert native.device.type == _C.physical_device()
        assert view.data_ptr() == native[1:].data_ptr()
        assert transposed.stride() == (1, 3)
        native.numpy()[0] = 5
        view.fill_(2)
        assert _testing.block_state(x)["state"] == "resident"
        assert _testing.block_state(x)["pins"] > 0
    assert x.tolist() == [[5] * 3] + [[2] * 3] * 3
    assert _testing.block_state(x)["pins"] == 0


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
    assert _testing.block_state(x)["pins"] == 0


def test_pins_end_if_there_are_no_natives(monkeypatch):
    class Fails(_C.Residence):
        def natives(self):
            raise KeyError("no alias")

    x = torch.zeros(4, device="chameleon")
    both = resident(x)
    monkeypatch.setattr(_C, "Residence", Fails)
    with pytest.raises(KeyError, match="no alias"), both:
        pass
    assert pins(x) == 0
    monkeypatch.undo()
    with both as (native,):
        assert native.sum().item() == 0


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
        assert _testing.block_state(part)["pins"] == 0


def test_readme_example():
    x = torch.zeros(3, device="chameleon")
    with torch_chameleon.resident(x) as (native,):
        torch.from_dlpack(native).add_(1)
    assert x.tolist() == [1, 1, 1]


# ---- who uses it


def test_compiled_kernel(kernel, tight):
    x, y = torch.randn(2, MIB // 4).unbind()
    x, y = x.clone(), y.clone()
    ours = x.to("chameleon"), y.to("chameleon")
    tight(8 * MIB)
    kernel(2.0, x, y)
    for _ in range(2):  # what the first call wrote survives an eviction
        _C.evict(ours[0])
        _C.evict(ours[1])
        with resident(*ours) as natives:
            kernel(1.0, *natives)
    assert same_bits(ours[0], x)
    torch.testing.assert_close(ours[1].cpu(), y)


def test_write_makes_the_host_copy_dirty():
    x = torch.ones(MIB, dtype=torch.uint8, device="chameleon")
    _C.evict(x)
    assert x.sum().item() == MIB  # back, and the host copy is kept
    assert _testing.block_state(x)["has_host_copy"]
    with resident(x) as (native,):
        ctypes.memset(native.data_ptr(), 3, MIB)
    assert not _testing.block_state(x)["has_host_copy"]
    assert moved(lambda: _C.evict(x))["bytes_out"] == MIB
    assert x.sum().item() == 3 * MIB


def test_dlpack_of_the_native_tensors():
    x = torch.zeros(2, 3, device="chameleon")
    with resident(x.t()) as (native,):
        torch.from_dlpack(native).add_(1)
        other = np.from_dlpack(native)
        other += 1
        assert other.shape == (3, 2)
        assert other.strides == (4, 12)
    assert x.tolist() == [[2] * 3] * 2


@pytest.mark.slow
def test_pybind_kernel(tmp_path):
    from torch.utils.cpp_extension import load_inline

    module = load_inline(
        "chameleon_test_kernel",
        """
        #include <pybind11/pybind11.h>
        void twice(unsigned long address, long n) {
          float* values = reinterpret_cast<float*>(address);
          for (long i = 0; i < n; i++) values[i] *= 2;
        }
        void twice_tensor(const at::Tensor& tensor) {
          twice(reinterpret_cast<unsigned long>(tensor.data_ptr<float>()),
                tensor.numel());
        }
        """,
        functions=["twice", "twice_tensor"],
        build_directory=str(tmp_path),
    )
    x = torch.ones(4, device="chameleon")
    with resident(x) as (native,):
        module.twice(native.data_ptr(), native.numel())
        module.twice_tensor(native)
    assert x.tolist() == [4] * 4


# ---- which tensors


def test_nothing_and_empty_tensors():
    with resident() as natives:
        assert natives == ()
    x = torch.empty(0, 3, device="chameleon")
    with resident(x, torch.ones(1, device="chameleon")) as (native, one):
        assert native.shape == (0, 3)
        assert native.numpy().shape == (0, 3)
        assert one.item() == 1


def test_same_tensor_twice():
    x = torch.ones(3, device="chameleon")
    with resident(x, x) as (one, other):
        one.add_(1)
        assert other.tolist() == [2, 2, 2]
        assert pins(x) == 1
    assert pins(x) == 0


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[1:, ::2],
        lambda x: x.t(),
        lambda x: x.expand(2, *x.shape),
        lambda x: x.as_strided((2, 2), (1, 1), 3),
        lambda x: x.view(torch.int32),
        lambda x: torch.view_as_complex(x).conj(),
        lambda x: torch.view_as_complex(x).conj().imag,
        lambda x: x.detach(),
        lambda x: torch.nn.Parameter(x),
    ],
)
def test_views(view):
    source = torch.arange(8.0).view(4, 2)
    native = view(source)
    with resident(view(source.to("chameleon"))) as (ours,):
        assert type(ours) is torch.Tensor
        assert ours.device.type == "cpu"
        assert ours.stride() == native.stride()
        assert ours.storage_offset() == native.storage_offset()
        assert ours.is_conj() == native.is_conj()
        assert ours.is_neg() == native.is_neg()
        assert same_bits(ours.resolve_conj().resolve_neg(), native)


def test_autograd_notices_writes():
    x = torch.ones(3, device="chameleon", requires_grad=True)
    y = x * 1
    loss = (y * y).sum()
    with resident(x, y) as (leaf, native):
        assert not leaf.requires_grad
        assert not native.requires_grad
        native.add_(1)
    assert y._version == 1
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        loss.backward()


def test_inference_tensors():
    with torch.inference_mode():
        x = torch.ones(3, device="chameleon")
    with resident(x) as (native,):
        assert native.is_inference()
        native.numpy()[0] = 7
    assert x.tolist() == [7, 1, 1]


def test_native_tensor_cannot_grow():
    x = torch.ones(3, device="chameleon")
    with resident(x) as (native,):
        with pytest.raises(RuntimeError, match="not resizable"):
            native.resize_(1000)
        native.resize_(2)
    assert x.tolist() == [1, 1, 1]


@pytest.mark.parametrize("wrong", [[1], None, 3, "x"])
def test_no_tensor(wrong):
    with pytest.raises(ValueError, match="got a"):
        resident(wrong)


# ---- when it begins and ends


def test_use_after_the_end():
    x = torch.ones(3, device="chameleon")
    with resident(x) as (native,):
        part = native[1:]
    for use in (
        lambda: native + 1,
        lambda: part.sum(),
        lambda: native.tolist(),
        lambda: native.numpy(),
        lambda: native.data_ptr(),
        lambda: native.fill_(3),
    ):
        with pytest.raises(RuntimeError, match="has ended"):
            use()
    assert x.tolist() == [1, 1, 1]


def test_nested():
    x = torch.ones(3, device="chameleon")
    with resident(x) as (outer,):
        with resident(x[1:]) as (inner,):
            assert pins(x) == 2
            inner.add_(1)
        assert pins(x) == 1
        assert outer.tolist() == [1, 2, 2]
        x.mul_(2)  # an op of the device in between
        outer.add_(1)
    assert pins(x) == 0
    assert x.tolist() == [3, 5, 5]


def test_pins_are_counted():
    x = torch.ones(MIB, dtype=torch.uint8, device="chameleon")
    y = torch.ones(MIB, dtype=torch.uint8, device="chameleon")

    def pinned():
        return torch_chameleon.swap_stats()["pinned_bytes"]

    before = pinned()
    with resident(x, x[1:]):
        assert pinned() == before + MIB
        with resident(x, y):
            assert pinned() == before + 2 * MIB
        assert pinned() == before + MIB
    assert pinned() == before


def test_entered_again():
    x = torch.ones(3, device="chameleon")
    again = resident(x)
    for expected in (2, 3):
        with again as (native,):
            native.add_(1)
        assert x.tolist() == [expected] * 3


def test_tensor_may_die_inside():
    x = torch.ones(3, device="chameleon")
    with resident(x) as (native,):
        del x
        gc.collect()
        native.add_(1)
        assert native.tolist() == [2, 2, 2]


def test_storage_may_be_freed_inside():
    x = torch.ones(MIB, device="chameleon")
    with resident(x) as (native,):
        x.untyped_storage().resize_(0)
        others = [torch.zeros(MIB, device="chameleon") for _ in range(4)]
        assert native.eq(1).all()
        del others
    _C.check_invariants(0, 2)


def test_generator():
    x = torch.ones(3, device="chameleon")

    def steps():
        with resident(x) as (native,):
            yield native
            yield native

    one, other = steps(), steps()
    next(one)
    next(other)
    assert pins(x) == 2
    next(one).add_(1)
    one.close()
    assert pins(x) == 1
    other.close()
    assert pins(x) == 0
    assert x.tolist() == [2, 2, 2]


def test_coroutines():
    x = torch.zeros(3, device="chameleon")

    async def step(amount):
        with resident(x) as (native,):
            await asyncio.sleep(0)
            native.add_(amount)
            await asyncio.sleep(0)

    async def both():
        await asyncio.gather(step(1), step(2), step(3))

    asyncio.run(both())
    assert x.tolist() == [6, 6, 6]
    assert pins(x) == 0


def test_left_on_another_thread():
    x = torch.zeros(3, device="chameleon")
    there = resident(x)
    with torch.no_grad():
        there.__enter__()[0].add_(1)
    thread = threading.Thread(target=there.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    assert pins(x) == 0
    assert x.tolist() == [1, 1, 1]


def test_threads(tight):
    """Each adds to its own tensor; they do not all fit, ops run between."""
    tensors = [torch.zeros(MIB, device="chameleon") for _ in range(3)]
    scratch = [torch.ones(MIB, device="chameleon") for _ in range(3)]
    tight(32 * MIB)
    failures = []

    def work(mine, other):
        try:
            for _ in range(10):
                with resident(mine) as (native,):
                    native.numpy()[...] += 1
                    other.mul_(1)
        except Exception as error:
            failures.append(error)

    threads = [
        threading.Thread(target=work, args=pair)
        for pair in zip(tensors, scratch, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for tensor in tensors:
        assert tensor.eq(10).all().item()
        assert pins(tensor) == 0


def test_one_error_and_everything_as_before(tight):
    parts = [
        torch.full((3 * MIB,), 5, dtype=torch.uint8, device="chameleon")
        for _ in range(3)
    ]
    tight(8 * MIB)
    with resident(*parts[:2]) as natives:
        with (
            pytest.raises(
                torch.OutOfMemoryError, match=r"resident needs 3\.00"
            ),
            resident(parts[2]),
        ):
            pass
        assert natives[1].eq(5).all()
    with resident(parts[2], parts[0]) as natives:
        assert natives[0].eq(5).all()
