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
        lambda: torch.eye(4).to_sparse_csr().to("chameleon").to_dense(),
        lambda: torch.eye(4).to_sparse_csr().to("chameleon") @ eye(),
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


def test_sparse_gradients():
    weight = eye().requires_grad_()
    index = torch.tensor([1]).to("chameleon")
    rows = torch.nn.functional.embedding(index, weight, sparse=True)
    with pytest.raises(NotImplementedError, match=SENTENCE):
        rows.sum().backward()
