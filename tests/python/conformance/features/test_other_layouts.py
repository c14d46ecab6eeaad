"""Layouts: one sentence from each that is not supported; the ways in of
compressed tensors, which are.
"""

import pytest
import torch

from conformance.harness.compare import difference, observe

SENTENCE = r"^aten::\S+: .*chameleon works on dense \(strided\) tensors"


def eye():
    return torch.eye(4, device="chameleon")


@pytest.mark.parametrize(
    "action",
    [
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
    "to": lambda x, device: x.to(device),
    "to requires_grad": lambda x, device: x.requires_grad_().to(device),
    "copy": lambda x, device: x.to(device, torch.float64, copy=True),
    "parts": lambda x, device: torch.sparse_compressed_tensor(
        *(part.to(device) for part in parts(x)), layout=x.layout
    ),
    "device=": lambda x, device: torch.sparse_compressed_tensor(
        *parts(x), x.shape, layout=x.layout, device=device
    ),
    "constructor": lambda x, device: getattr(
        torch, f"{x.layout}_tensor".removeprefix("torch.")
    )(*parts(x), device=device),
    "constructor with size": lambda x, device: getattr(
        torch, f"{x.layout}_tensor".removeprefix("torch.")
    )(*parts(x), (4, 4), device=device),
    "zeros_like": lambda x, device: torch.zeros_like(x, device=device),
    "module": lambda x, device: torch.nn.ParameterList([x]).to(device)[0],
}


@pytest.mark.parametrize("layout", COMPRESSED)
@pytest.mark.parametrize("name", MAKES)
def test_compressed_tensors_are_made(name, layout):
    def action(device):
        made = MAKES[name](COMPRESSED[layout](), device)
        assert made.device.type == device
        return (made, *(part.clone() for part in parts(made.detach())))

    assert not difference(observe(action, "cpu"), observe(action, "chameleon"))


@pytest.mark.parametrize("layout", ["csr", "csc"])  # PyTorch has no others
def test_compressed_tensors_without_values(layout):
    like = COMPRESSED[layout]()
    for made in (
        torch.empty_like(like, device="chameleon"),
        torch.empty(4, 4, layout=like.layout, device="chameleon"),
    ):
        assert made.device.type == "chameleon"
        assert made.layout == like.layout
        assert made.values().device.type == "chameleon"
