"""Views and indexing: results, strides and aliasing are the native ones."""

import numpy as np
import pytest
import torch
from support import same_bits


def grid(device):
    return torch.arange(24.0).to(device).view(4, 6)


def index(device, *values):
    return torch.tensor(values, device=device)


VIEWS = {
    "slice": lambda x: x[1:3, ::2],
    "select": lambda x: x[2],
    "ellipsis": lambda x: x[..., None, 1:4],
    "True": lambda x: x[True],
    "transpose": lambda x: x.t()[1:],
    "permute": lambda x: x[None].permute(2, 0, 1),
    "expand": lambda x: x[:, :1].expand(2, 4, 5),
    "narrow": lambda x: x.narrow(1, 2, 3),
    "diagonal": lambda x: x.diagonal(1),
    "unfold": lambda x: x.unfold(1, 3, 2),
    "as_strided": lambda x: x.as_strided((3, 2), (2, 5), 1),
    "view": lambda x: x.view(2, 2, -1),
    "view_as": lambda x: x.view_as(torch.empty(6, 4)),
    "view dtype": lambda x: x.view(torch.int16),
    "view wider": lambda x: x.view(torch.float64),
    "view_as_complex": lambda x: torch.view_as_complex(x.view(4, 3, 2)),
    "conj": lambda x: torch.view_as_complex(x.view(4, 3, 2)).conj(),
    "imag of conj": lambda x: (
        torch.view_as_complex(x.view(4, 3, 2)).conj().imag
    ),
    "unflatten": lambda x: x.unflatten(1, (2, 3)),
    "flatten": lambda x: x.flatten(),
    "squeeze": lambda x: x[None, :, None].squeeze(0),
    "movedim": lambda x: x.movedim(0, 1),
    "mT": lambda x: x.mT,
    "chunk": lambda x: x.chunk(4, 1)[2],
    "split": lambda x: x.split([1, 3])[1],
    "tensor_split": lambda x: x.tensor_split(3, 1)[1],
    "hsplit": lambda x: x.hsplit(2)[1],
    "unbind": lambda x: x.unbind(1)[3],
    "detach": lambda x: x.detach(),
    "real": lambda x: x.real,
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name):
    native_base, base = grid("cpu"), grid("chameleon")
    native, ours = VIEWS[name](native_base), VIEWS[name](base)
    assert ours.is_chameleon
    assert ours.shape == native.shape
    assert ours.stride() == native.stride()
    assert ours.storage_offset() == native.storage_offset()
    assert ours.is_conj() == native.is_conj()
    assert ours.is_neg() == native.is_neg()
    assert same_bits(ours.resolve_conj(), native.resolve_conj())
    assert ours._is_view() == native._is_view()
    native.detach().fill_(7)
    ours.detach().fill_(7)
    assert base._version == native_base._version
    assert same_bits(base, native_base)  # written through, or not


INDEXED = {
    "lists": lambda x: x[[0, 2], [1, 3]],
    "tensor": lambda x: x[index(x.device, 3, 1, 1)],
    "cpu tensor": lambda x: x[index("cpu", 3, 1)],
    "broadcast": lambda x: x[index(x.device, 0, 1)[:, None], index("cpu", 2)],
    "mask": lambda x: x[x > 5],
    "cpu mask": lambda x: x[torch.tensor([True, False, True, False])],
    "row mask": lambda x: x[x[:, 0] > 6, 1:],
    "uint8 mask": lambda x: x[torch.ones(4, dtype=torch.uint8)],
    "mixed": lambda x: x[1:, None, [0, 5]],
    "numpy": lambda x: x[np.array([0, 3])],
    "range": lambda x: x[range(2)],
    "nothing": lambda x: x[index(x.device).long()],
    "0-dim": lambda x: x[torch.tensor(1)],
    "gather": lambda x: x.gather(1, index(x.device, [0, 1], [5, 5])),
    "take": lambda x: x.take(index(x.device, 0, 23)),
    "take_along_dim": lambda x: x.take_along_dim(x.argsort(1).flip(1), 1),
    "index_select": lambda x: x.index_select(1, index(x.device, 4, 0)),
    "masked_select": lambda x: x.masked_select(x < 3),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 3, x, 0),
}


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("name", INDEXED)
def test_indexing(name):
    native, ours = INDEXED[name](grid("cpu")), INDEXED[name](grid("chameleon"))
    assert ours.is_chameleon
    assert ours.stride() == native.stride()
    assert same_bits(ours, native)


def assign(key, value):
    def run(x):
        x[key(x)] = value(x)

    return run


WRITES = {
    "slice": assign(lambda x: (slice(1, 3), slice(None, None, 2)), lambda x: 9),
    "lists": assign(lambda x: ([0, 2], [1, 3]), lambda x: 9.0),
    "mask": assign(lambda x: x > 5, lambda x: -1),
    "mask values": assign(
        lambda x: x[:, 0] > 6, lambda x: torch.ones(6, device=x.device)
    ),
    "cpu index": assign(lambda x: index("cpu", 0), lambda x: x[3] * 1),
    "cpu 0-dim": assign(lambda x: (0, 0), lambda x: torch.tensor(7.0)),
    "overlap": assign(lambda x: slice(0, 2), lambda x: x[2:4]),
    "transposed": lambda x: x.t()[2].fill_(4),
    "accumulate": lambda x: x.index_put_(
        (index(x.device, 0, 0),), torch.ones(6, device=x.device), True
    ),
    "index_add": lambda x: x.index_add_(0, index(x.device, 1, 1), x[:2] * 1),
    "index_fill": lambda x: x.index_fill_(1, index(x.device, 0, 2), 5),
    "index_copy": lambda x: x.index_copy_(0, index(x.device, 3), x[:1] * 1),
    "scatter": lambda x: x.scatter_(1, index(x.device, [0, 1]), 8.0),
    "scatter_add": lambda x: x.scatter_add_(
        0, index(x.device, [0, 0]), x[:1, :2] * 1
    ),
    "masked_fill": lambda x: x.masked_fill_(x > 3, 2),
    "masked_scatter": lambda x: x.masked_scatter_(x > 3, x * 1),
    "put": lambda x: x.put_(index(x.device, 0, 3), x.new_tensor([1.0, 2])),
    "del dims": lambda x: x.resize_(3, 5),
    "copy into view": lambda x: x[:, 1::2].copy_(torch.arange(12.0).view(4, 3)),
    "set imag": lambda x: torch.view_as_complex(x.view(4, 3, 2)).imag.fill_(3),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes(name):
    native, ours = grid("cpu"), grid("chameleon")
    WRITES[name](native)
    WRITES[name](ours)
    assert ours.shape == native.shape
    assert ours._version == native._version
    assert same_bits(ours, native)


ERRORS = {
    "negative step": lambda x: x[::-1],
    "negative stride": lambda x: x.as_strided((2,), (-1,)),
    "beyond the storage": lambda x: x.as_strided((100,), (1,)),
    "no such row": lambda x: x[7],
    "no such element": lambda x: x[[7]],
    "float index": lambda x: x[torch.tensor([0.5], device=x.device)],
    "too many": lambda x: x[0, 0, 0],
    "mask of another shape": lambda x: x[
        torch.ones(3, dtype=torch.bool, device=x.device)
    ],
    "incompatible view": lambda x: x.t().view(-1),
    "odd dtype": lambda x: x[:, :5].view(torch.float64),
    "unfold too large": lambda x: x.unfold(1, 9, 1),
    "write into expanded": lambda x: x[:, :1].expand(4, 6).add_(x),
    "copy of another shape": lambda x: x.copy_(x.new_ones(5)),
    "copy of a larger shape": lambda x: x[0].copy_(x.new_ones(4, 6)),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    """The same exception as natively, in the same words."""
    caught = []
    for device in ("cpu", "chameleon"):
        with pytest.raises((RuntimeError, IndexError, ValueError)) as error:
            ERRORS[name](grid(device))
        caught.append(error)
    native, ours = caught
    assert type(ours.value) is type(native.value)
    assert str(ours.value) == str(native.value)


def test_python_protocol():
    x = grid("chameleon")
    assert len(x) == 4
    assert [row.sum().item() for row in x] == [15, 51, 87, 123]
    assert torch.tensor(3.0, device="chameleon") in x
    assert bool(torch.ones(1, device="chameleon"))
    assert int(torch.tensor(3, device="chameleon")) == 3
    assert "abc"[torch.tensor(1, device="chameleon")] == "b"
    assert f"{torch.tensor(1.5, device='chameleon'):.2f}" == "1.50"
    assert len({x, x, x.clone()}) == 2
    assert repr(x[0, :2]) == "tensor([0., 1.], device='chameleon:0')"
    with pytest.raises(RuntimeError, match="ambiguous"):
        bool(x)
