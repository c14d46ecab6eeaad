"""Attention takes the backend that native takes, and gives its bits."""

import pytest
import torch
from support import same_bits
from torch.nn.functional import scaled_dot_product_attention


def attend(device, dtype, mask, is_causal, enable_gqa, dropout_p):
    """Returns the output and every gradient."""
    torch.manual_seed(0)
    heads = 2 if enable_gqa else 4
    query = torch.randn(2, 4, 16, 32, dtype=dtype)
    key = torch.randn(2, heads, 16, 32, dtype=dtype)
    value = torch.randn(2, heads, 16, 32, dtype=dtype)
    attn_mask = {
        "none": None,
        "bool": (torch.rand(16, 16) > 0.3) | torch.eye(16, dtype=torch.bool),
        "float": torch.randn(16, 16, dtype=dtype),
        "trained": torch.randn(16, 16, dtype=dtype),
    }[mask]
    leaves = [t.to(device).requires_grad_() for t in (query, key, value)]
    if attn_mask is not None:
        attn_mask = attn_mask.to(device)
    given = list(leaves)
    if mask == "trained":
        leaves.append(attn_mask.requires_grad_())
    torch.manual_seed(1)
    output = scaled_dot_product_attention(
        *given,
        attn_mask=attn_mask,
        is_causal=is_causal,
        enable_gqa=enable_gqa,
        dropout_p=dropout_p,
    )
    output.float().square().sum().backward()
    return [output, *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
@pytest.mark.parametrize("enable_gqa", [False, True])
@pytest.mark.parametrize(
    ("mask", "is_causal"),
    [
        ("none", False),
        ("none", True),
        ("bool", False),
        ("float", False),
        ("trained", False),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits(dtype, mask, is_causal, enable_gqa, dropout_p):
    choice = (dtype, mask, is_causal, enable_gqa, dropout_p)
    native = attend("cpu", *choice)
    ours = attend("chameleon", *choice)
    assert all(map(same_bits, native, ours))
