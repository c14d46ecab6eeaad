"""Storages: as torch's own, but for reading at their address."""

import copy

import pytest
import torch
from torch_chameleon import _C

VALUES = [0, 0, 0, 0, 0, 0, 128, 63, 0, 0, 0, 64]  # 0., 1., 2.


def storage(device="chameleon"):
    return torch.arange(3.0, device=device).untyped_storage()


def test_what_it_is():
    s = storage()
    assert s.device == torch.device("chameleon:0")
    assert s.nbytes() == s.size() == len(s) == 12
    assert s.element_size() == 1
    assert s.resizable()
    assert s.is_chameleon
    assert not s.is_cuda
    assert not s.is_shared()
    assert not s.is_pinned()
    assert s.tolist() == VALUES
    assert "chameleon:0" in repr(s)


@pytest.mark.parametrize("source", ["cpu", "chameleon"])
@pytest.mark.parametrize("target", ["cpu", "chameleon"])
def test_copies(source, target):
    s = torch.zeros(3, device=target).untyped_storage()
    assert s.copy_(storage(source)) is s
    assert s.tolist() == VALUES
    for made in (
        storage(source).clone(),
        storage(source).to(device=target),
        storage(source).cpu(),
        copy.deepcopy(storage(source)),
    ):
        assert made.tolist() == VALUES


def test_elements():
    s = storage()
    assert s[6] == 128
    s[0] = 5
    s[8:10] = 7
    assert s.tolist() == [5, *VALUES[1:8], 7, 7, *VALUES[10:]]
    assert s.fill_(1) is s
    assert list(s) == [1] * 12
    with pytest.raises(IndexError):
        s[12]


def test_slice_shares_and_says_that_it_cannot_be_read():
    part = storage()[4:8]
    assert part.nbytes() == 4
    with pytest.raises(RuntimeError, match="slice of a storage"):
        part.tolist()


def test_new():
    assert torch.UntypedStorage(8, device="chameleon").nbytes() == 8
    assert torch.UntypedStorage(device="chameleon").nbytes() == 0
    assert torch.UntypedStorage([1, 2], device="chameleon").tolist() == [1, 2]


def test_resize_keeps_what_fits():
    s = storage()
    s.resize_(1000)
    assert s.nbytes() == 1000
    assert s.tolist()[:12] == VALUES
    s.resize_(8)
    assert s.tolist() == VALUES[:8]
    before = torch.chameleon.memory_allocated()
    s.resize_(0)
    assert s.nbytes() == 0
    assert s.data_ptr() == 0
    assert torch.chameleon.memory_allocated() == before - 8
    s.resize_(4)  # as FSDP gives parameters back their memory
    s.fill_(3)
    assert s.tolist() == [3] * 4


def test_tensors_see_their_resized_storage():
    x = torch.arange(3.0, device="chameleon")
    view = x[1:]
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(12)
    x.copy_(torch.tensor([5.0, 6, 7]))
    assert view.tolist() == [6, 7]


def test_addresses():
    """Logical: stable for the storage's life, whatever moves underneath."""
    x = torch.ones(4, 4, device="chameleon")
    address = x.data_ptr()
    assert address % 512 == 0
    assert x.untyped_storage().data_ptr() == address
    assert x[1:].data_ptr() == address + 16
    assert x.t().data_ptr() == address
    assert torch.ones(4, 4, device="chameleon").data_ptr() != address
    _C.evict(x)
    assert x.data_ptr() == address
    x.add_(1)
    assert x.data_ptr() == address
    assert torch.empty(0, device="chameleon").data_ptr() == 0
    assert x.view(-1).is_set_to(x.view(-1))
    assert not x.is_set_to(x.clone())


def test_byteswap():
    native, ours = storage("cpu"), storage()
    native.byteswap(torch.float32)
    ours.byteswap(torch.float32)
    assert ours.tolist() == native.tolist()
    assert ours.tolist() != VALUES


def test_typed_storage():
    typed = torch.TypedStorage(
        wrap_storage=storage(), dtype=torch.float32, _internal=True
    )
    assert typed.tolist() == [0, 1, 2]
    assert typed.int().tolist() == [0, 1, 2]
    typed[1] = 5
    assert typed[1] == 5
    assert typed.cpu().tolist() == [0, 5, 2]
    assert typed.is_chameleon


def test_tensors_over_a_storage():
    s = storage()
    x = torch.empty(0, device="chameleon").set_(s, 1, (2,), (1,))
    assert x.tolist() == [1, 2]
    x.zero_()
    assert s.tolist() == VALUES[:4] + [0] * 8
    y = torch.empty(0, device="chameleon").set_(x)
    assert y.data_ptr() == x.data_ptr()
    with pytest.raises(RuntimeError, match=r"(?i)device"):
        torch.empty(0).set_(s)
    assert x.set_().numel() == 0


def test_storage_outlives_its_tensor():
    s = storage()
    torch.chameleon.synchronize()
    _C.evict_all(0)
    assert s.tolist() == VALUES


def test_swapped_tensors_swap_storages():
    a = torch.ones(2, device="chameleon")
    b = torch.zeros(3, device="chameleon")
    torch.utils.swap_tensors(a, b)
    assert a.tolist() == [0] * 3
    a.data = torch.ones(1, device="chameleon")
    assert a.tolist() == [1]


@pytest.mark.parametrize(
    "change",
    [
        lambda x, y: x.resize_(1 << 40),
        lambda x, y: x.resize_(1 << 38, 1, 1, 1).t_(),
        lambda x, y: x.set_(y.untyped_storage(), 0, (1 << 40,), (1,)),
        lambda x, y: x.set_(y.untyped_storage(), 3, (1 << 20, 1 << 20)),
    ],
)
def test_a_change_without_room_changes_nothing(change):
    x = torch.arange(6.0, device="chameleon").view(2, 3).t()
    y = torch.ones(5, device="chameleon")
    address, before = x.data_ptr(), _C.swap_stats(0)["logical_bytes"]
    with pytest.raises(torch.OutOfMemoryError):
        change(x, y)
    assert (x.shape, x.stride()) == ((3, 2), (1, 3))
    assert x.data_ptr() == address
    assert x.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert y.tolist() == [1] * 5
    assert _C.swap_stats(0)["logical_bytes"] == before


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x.cpu(),
        lambda x: x.tolist(),
        lambda x: x.t().cpu(),
        lambda x: x.copy_(torch.ones(x.shape)),
        lambda x: x[1].copy_(torch.ones(4)),
    ],
)
def test_a_tensor_larger_than_its_storage(use):
    """Natively it shows what lies behind; here other tensors do."""
    x = torch.ones(2, 4, device="chameleon")
    x.untyped_storage().resize_(20)
    with pytest.raises(RuntimeError, match="storage of (size )?20"):
        use(x)
    assert x[0, :2].tolist() == [1, 1]
    x.untyped_storage().resize_(32)
    assert x.cpu().shape == (2, 4)


@pytest.mark.parametrize(
    "use",
    [
        torch.sum,
        torch.clone,
        lambda x: x.fill_(1),
        lambda x: x + 1,
        lambda x: torch.add(torch.ones_like(x), 1, out=x),
        lambda x: torch._foreach_add_([x], 1),
        lambda x: torch._foreach_mul([x], [x]),
    ],
)
def test_a_tensor_whose_storage_is_gone(use):
    """Natively an op on it ends the process."""
    x = torch.ones(2, 4, device="chameleon")
    x.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="resized to 0 bytes"):
        use(x)
    x.untyped_storage().resize_(32)
    assert x.fill_(2).sum() == 16


@pytest.mark.parametrize("shapes", [((0,), (3,)), ((2, 0), (2, 3))])
@pytest.mark.parametrize("source", ["cpu", "chameleon"])
def test_copies_of_nothing_are_checked(shapes, source):
    to, of = shapes
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        torch.empty(to, device="chameleon").copy_(torch.ones(of, device=source))
    one = torch.empty(0, device="chameleon").copy_(torch.ones(1, device=source))
    assert one.shape == (0,)
