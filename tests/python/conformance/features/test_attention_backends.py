"""torch.nn.attention: each backend flag does what it does natively."""

from contextlib import nullcontext

import pytest
import torch
from support import same_bits
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from conformance.harness.recorded import kernels_of, ops_of, renamed

BACKENDS = {
    "all": list(SDPBackend.__members__.values())[1:],
    "math": [SDPBackend.MATH],
    "flash": [SDPBackend.FLASH_ATTENTION],
    "efficient": [SDPBackend.EFFICIENT_ATTENTION],
    "cudnn": [SDPBackend.CUDNN_ATTENTION],
    "overrideable": [SDPBackend.OVERRIDEABLE],
    "flash or math": [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH],
}

CALLS = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.3},
    "dropout": {"dropout_p": 0.4},
    "gqa": {"enable_gqa": True},
    "causal gqa": {"is_causal": True, "enable_gqa": True},
}

MASKS = {
    "none": lambda: None,
    "bool": lambda: (torch.rand(6, 6) > 0.4) | torch.eye(6, dtype=torch.bool),
    "float": lambda: torch.randn(6, 6),
    "broadcast": lambda: torch.randn(2, 1, 6, 6),
    "trained": lambda: torch.randn(6, 6).requires_grad_(),
}


def attention(device, backends, options, mask, dtype=torch.float32):
    """Makes ready; returns what to run, which returns output and gradients."""
    torch.manual_seed(0)
    heads = 2 if options.get("enable_gqa") else 4
    leaves = [
        torch.randn(2, count, 6, 8, dtype=dtype).to(device).requires_grad_()
        for count in (4, heads, heads)
    ]
    mask = MASKS[mask]()
    if mask is not None:
        trained = mask.requires_grad
        mask = mask if mask.dtype == torch.bool else mask.to(dtype)
        mask = mask.detach().to(device).requires_grad_(trained)

    def run():
        torch.manual_seed(1)
        with sdpa_kernel(backends) if backends else nullcontext():
            output = scaled_dot_product_attention(
                *leaves, attn_mask=mask, **options
            )
        wanted = [*leaves, mask] if mask is not None and trained else leaves
        return [output, *torch.autograd.grad(output.sum(), wanted)]

    return run


def result(run):
    try:
        return run()
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("backends", BACKENDS)
def test_backends(backends, call, mask):
    given = (BACKENDS[backends], CALLS[call], mask)
    native = result(attention("cpu", *given))
    ours = result(attention("chameleon", *given))
    if isinstance(native, str):
        assert ours == native
        return
    assert all(map(same_bits, native, ours))
    assert [a.stride() for a in native] == [b.stride() for b in ours]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("mask", ["none", "float", "trained"])
def test_kernels(call, mask):
    runs = [
        lambda device=device: attention(
            device, BACKENDS["all"], CALLS[call], mask
        )
        for device in ("cpu", "chameleon")
    ]
    native, ours = kernels_of(runs)
    assert renamed(ours[0]) == native[0]
    native, ours = (ops_of(run())[0] for run in runs)
    assert ours == native


@pytest.mark.parametrize("flag", ["flash", "mem_efficient", "math", "cudnn"])
def test_global_flags(flag):
    enable = getattr(torch.backends.cuda, f"enable_{flag}_sdp")
    before = getattr(torch.backends.cuda, f"{flag}_sdp_enabled")()
    enable(not before)
    try:
        runs = [
            lambda device=device: attention(device, None, {}, "float")
            for device in ("cpu", "chameleon")
        ]
        native, ours = kernels_of(runs)
        assert renamed(ours[0]) == native[0]
        assert type(ours[1]) is type(native[1])
    finally:
        enable(before)


def flex(device, block_mask=False, grad=True):
    torch.manual_seed(0)
    leaves = [
        torch.randn(1, 2, 128, 16).to(device).requires_grad_(grad)
        for _ in range(3)
    ]
    options = {"score_mod": lambda score, b, h, q, k: score + (q - k) * 0.01}
    if block_mask:
        options["block_mask"] = create_block_mask(
            lambda b, h, q, k: q >= k, None, None, 128, 128, device=device
        )
    output = flex_attention(*leaves, **options)
    if not grad:
        return [output]
    return [output, *torch.autograd.grad(output.sum(), leaves)]


@pytest.mark.parametrize("block_mask", [False, True])
def test_flex_attention(block_mask):
    (native,) = flex("cpu", block_mask, grad=False)
    (ours,) = flex("chameleon", block_mask, grad=False)
    assert same_bits(native, ours)


@pytest.mark.parametrize("block_mask", [False, True])
def test_flex_attention_gradients(block_mask):
    """Native refuses them on the CPU, so the reference is written out."""
    output, *gradients = flex("chameleon", block_mask)
    torch.manual_seed(0)
    leaves = [torch.randn(1, 2, 128, 16).requires_grad_() for _ in range(3)]
    query, key, value = leaves
    position = torch.arange(128)
    distance = position[:, None] - position[None, :]
    scores = query @ key.mT / 4 + distance * 0.01
    if block_mask:
        scores = scores.masked_fill(distance < 0, -torch.inf)
    expected = scores.softmax(-1) @ value
    expected_gradients = torch.autograd.grad(expected.sum(), leaves)
    torch.testing.assert_close(output.cpu(), expected)
    for one, other in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(one.cpu(), other)
