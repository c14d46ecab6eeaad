"""Nested, named, quantized tensors: they work, or one sentence says what does.

Sparse ones: test_sparse_tensors.py.
"""

import re
import warnings

import pytest
import torch
from support import same_bits


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # prototypes and betas
        yield


def one_sentence(caught, what):
    """The op, what is not supported, what to do; nothing of dispatch keys."""
    text = str(caught.value)
    assert re.search(r"aten::\w+", text)
    assert re.search(what, text), text
    assert "chameleon works on dense" in text
    assert "\n" not in text
    assert len(text) < 250


# ---- nested


def jagged(device, *lengths, width=4, grad=False):
    draws = torch.Generator().manual_seed(0)
    return torch.nested.nested_tensor(
        [torch.randn(n, width, generator=draws) for n in lengths],
        layout=torch.jagged,
        device=device,
        requires_grad=grad,
    )


JAGGED = {
    "pointwise": lambda x: (x.sin() * 2 + x).values(),
    "linear": lambda x: torch.nn.functional.linear(
        x, torch.ones(3, 4, device=x.device)
    ).values(),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (4,)).values(),
    "softmax": lambda x: x.softmax(-1).values(),
    "padded": lambda x: x.to_padded_tensor(0.5),
    "unbind": lambda x: torch.cat([part * 2 for part in x.unbind()]),
}


@pytest.mark.parametrize("name", JAGGED)
def test_jagged(name):
    results = []
    for device in ("cpu", "chameleon"):
        x = jagged(device, 2, 3, 1, grad=True)
        y = JAGGED[name](x)
        (gradient,) = torch.autograd.grad(y.square().sum(), x)
        assert y.device.type == device
        results.append((y, gradient.values()))
    for native, ours in zip(*results, strict=True):
        assert same_bits(native, ours)


def test_jagged_moves():
    x = jagged("cpu", 2, 3)
    y = x.to("chameleon")
    assert y.is_chameleon
    assert same_bits(y.values(), x.values())
    assert same_bits(y.cpu().values(), x.values())


# ---- quantized and others

QUANTIZED = {
    "per tensor": lambda: torch.quantize_per_tensor(
        torch.ones(3, device="chameleon"), 0.1, 0, torch.quint8
    ).dequantize(),
    "per channel": lambda: torch.quantize_per_channel(
        torch.ones(3, 2, device="chameleon"),
        torch.ones(3, device="chameleon"),
        torch.zeros(3, device="chameleon"),
        0,
        torch.qint8,
    ).dequantize(),
    "dynamic": lambda: torch.quantize_per_tensor_dynamic(
        torch.ones(3, device="chameleon"), torch.quint8, False
    ).int_repr(),
    "in no op": lambda: torch.quantize_per_tensor(
        torch.ones(3, device="chameleon"), 0.1, 0, torch.quint8
    ),
    "made of integers": lambda: torch._make_per_tensor_quantized_tensor(
        torch.ones(3, dtype=torch.uint8, device="chameleon"), 0.1, 0
    ),
    "moved": lambda: torch.quantize_per_tensor(
        torch.ones(3), 0.1, 0, torch.quint8
    ).to("chameleon"),
    "empty": lambda: torch._empty_affine_quantized(
        (3,), scale=0.1, zero_point=0, dtype=torch.quint8, device="chameleon"
    ),
}


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized(name):
    with pytest.raises(NotImplementedError) as caught:
        QUANTIZED[name]()
    one_sentence(caught, "quantized tensors")


def test_fake_quantization_works():
    x = torch.linspace(-1, 1, 20)
    results = []
    for device in ("cpu", "chameleon"):
        y = x.to(device).requires_grad_()
        z = torch.fake_quantize_per_tensor_affine(y, 0.1, 3, 0, 15)
        results.append((z, *torch.autograd.grad(z.sum(), y)))
    assert all(map(same_bits, *results))


def test_mkldnn():
    with pytest.raises(NotImplementedError) as caught:
        torch.ones(3, device="chameleon").to_mkldnn()
    one_sentence(caught, "Mkldnn")


# ---- names


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.refine_names("a", "b").sum("a"),
        lambda x: x.refine_names("a", "b").align_to("b", "a") + 1,
        lambda x: x.rename("a", "b") @ x.rename("c", "b").t(),
        lambda x: x.rename_("a", "b").flatten(["a", "b"], "c"),
        lambda x: x.rename("a", "b").unflatten("b", (("x", 2), ("y", 2))),
        lambda x: x.rename("a", "b").softmax("b"),
        lambda x: x.rename("a", "b").select("b", 1),
        lambda x: torch.cat([x.rename("a", "b")] * 2, "a"),
    ],
)
def test_named_tensors(call):
    x = torch.randn(3, 4)
    native, ours = call(x.clone()), call(x.to("chameleon"))
    assert ours.is_chameleon
    assert ours.names == native.names
    assert same_bits(ours.rename(None), native.rename(None))
    with pytest.raises(RuntimeError, match="do not match|not match"):
        _ = x.to("chameleon").rename("a", "b") + x.to("chameleon").rename(
            "b", "a"
        )
