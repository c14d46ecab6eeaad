"""Tensors that are not dense: one sentence each, from whatever meets them."""

import pytest
import torch

SENTENCE = r"^aten::\S+: .*chameleon works on dense \(strided\) tensors"


def eye():
    return torch.eye(4, device="chameleon")


@pytest.mark.parametrize(
    "action",
    [
        lambda: torch.eye(4).to_sparse().to("chameleon"),
        lambda: eye().to_sparse(),
        lambda: eye().to_sparse_csr(),
        lambda: eye().to_sparse_csc(),
        lambda: eye().to_sparse_bsr((2, 2)),
        lambda: eye().to_sparse_bsc((2, 2)),
        lambda: torch.empty(3, layout=torch.sparse_coo, device="chameleon"),
        lambda: torch.sparse.mm(torch.eye(4).to_sparse(), eye()),
        lambda: torch.eye(4).to_sparse() + eye(),
        lambda: eye().to_mkldnn(),
        lambda: torch.quantize_per_tensor(
            torch.ones(3), 0.1, 0, torch.qint8
        ).to("chameleon"),
    ],
)
def test_one_sentence(action):
    with pytest.raises(NotImplementedError, match=SENTENCE) as raised:
        action()
    assert "\n" not in str(raised.value).strip()


COMPRESSED = {
    "csr": lambda: torch.eye(4).to_sparse_csr(),
    "csc": lambda: torch.eye(4).to_sparse_csc(),
    "bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "bsc": lambda: torch.eye(4).to_sparse_bsc((2, 2)),
}


def parts(tensor):
    """What a compressed tensor is made of: two of indices, and the values."""
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return tensor.ccol_indices(), tensor.row_indices(), tensor.values()


MAKES = {
    "to": lambda x: x.to("chameleon"),
    "to requires_grad": lambda x: x.requires_grad_().to("chameleon"),
    "copy": lambda x: x.to("chameleon", torch.float64, copy=True),
    "parts": lambda x: torch.sparse_compressed_tensor(
        *(part.to("chameleon") for part in parts(x)), layout=x.layout
    ),
    "device=": lambda x: torch.sparse_compressed_tensor(
        *parts(x), x.shape, layout=x.layout, device="chameleon"
    ),
    "empty": lambda x: torch.empty(4, 4, layout=x.layout, device="chameleon"),
    # torch makes an empty one without asking the device.
    "empty_like": lambda x: torch.empty_like(x, device="chameleon").values(),
    "zeros_like": lambda x: torch.zeros_like(x, device="chameleon"),
    "module": lambda x: torch.nn.ParameterList([x]).to("chameleon"),
}


@pytest.mark.parametrize("layout", COMPRESSED)
@pytest.mark.parametrize("name", MAKES)
def test_no_compressed_tensor_is_made(name, layout):
    with pytest.raises(NotImplementedError, match=SENTENCE):
        MAKES[name](COMPRESSED[layout]())


@pytest.mark.parametrize("layout", ["csr", "csc"])
def test_compressed_constructors(layout):
    make = getattr(torch, f"sparse_{layout}_tensor")
    compressed = parts(COMPRESSED[layout]())
    for size in ((), ((4, 4),)):
        with pytest.raises(NotImplementedError, match=SENTENCE):
            make(*compressed, *size, device="chameleon")
    with pytest.raises(NotImplementedError, match=SENTENCE):
        torch.zeros(
            4, 4, layout=getattr(torch, f"sparse_{layout}"), device="chameleon"
        )


def test_sparse_gradients():
    weight = eye().requires_grad_()
    index = torch.tensor([1]).to("chameleon")
    rows = torch.nn.functional.embedding(index, weight, sparse=True)
    with pytest.raises(NotImplementedError, match=SENTENCE):
        rows.sum().backward()
