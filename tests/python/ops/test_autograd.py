"""Autograd, checkpointing and hooks are torch's own, with native bits."""

import copy

import pytest
import torch
from support import same_bits
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


def pair(make):
    """The same module natively and on chameleon."""
    torch.manual_seed(0)
    native = make()
    return native, copy.deepcopy(native).to("chameleon")


def same_gradients(native, ours):
    return all(
        same_bits(a.grad, b.grad)
        for a, b in zip(native.parameters(), ours.parameters(), strict=True)
    )


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_checkpoint(use_reentrant, dropout):
    native, ours = pair(
        lambda: nn.Sequential(
            nn.Linear(8, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 8)
        )
    )
    outputs = []
    for net, device in ((native, "cpu"), (ours, "chameleon")):
        torch.manual_seed(1)
        x = torch.randn(4, 8).to(device).requires_grad_()
        y = checkpoint(net, x, use_reentrant=use_reentrant)
        y.square().sum().backward()
        outputs += [y, x.grad, torch.rand(1)]
    assert all(map(same_bits, outputs[:3], outputs[3:]))
    assert same_gradients(native, ours)


def test_checkpoint_sequential():
    native, ours = pair(
        lambda: nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    )
    for net, device in ((native, "cpu"), (ours, "chameleon")):
        x = torch.ones(2, 4, device=device, requires_grad=True)
        checkpoint_sequential(net, 2, x, use_reentrant=False).sum().backward()
    assert same_gradients(native, ours)


def test_selective_save_on_cpu():
    x = torch.randn(4, 4, device="chameleon", requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        y = (x * x).sin().sum()
    y.backward()
    expected = x.detach().cpu().requires_grad_()
    (expected * expected).sin().sum().backward()
    assert same_bits(x.grad, expected.grad)


def test_saved_tensor_hooks():
    seen = []
    x = torch.ones(3, device="chameleon", requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: (seen.append(t.device.type), t)[1], lambda t: t
    ):
        x.exp().sum().backward()
    assert seen
    assert set(seen) == {"chameleon"}


def test_module_hooks():
    model = nn.Linear(2, 2).to("chameleon")
    seen = []
    model.register_forward_pre_hook(lambda m, i: seen.append("pre"))
    model.register_forward_hook(lambda m, i, o: seen.append("forward"))
    model.register_full_backward_hook(lambda m, i, o: seen.append("backward"))
    x = torch.ones(1, 2, device="chameleon", requires_grad=True)
    model(x).sum().backward()
    assert seen == ["pre", "forward", "backward"]


def test_double_backward():
    grads = []
    for device in ("cpu", "chameleon"):
        torch.manual_seed(0)
        x = torch.randn(3, 3).to(device).requires_grad_()
        (grad,) = torch.autograd.grad(
            x.sin().pow(2).sum(), x, create_graph=True
        )
        grad.square().sum().backward()
        grads.append(x.grad)
    assert same_bits(*grads)


def test_convolution_double_backward():
    grads = []
    for device in ("cpu", "chameleon"):
        torch.manual_seed(0)
        conv = nn.Conv2d(2, 3, 3).to(device)
        x = torch.randn(1, 2, 5, 5).to(device).requires_grad_()
        out = conv(x).square().sum()
        (grad,) = torch.autograd.grad(out, x, create_graph=True)
        grad.square().sum().backward()
        grads.append(conv.weight.grad)
    assert same_bits(*grads)


def test_custom_function():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            assert x.is_chameleon
            return grad * 2

    x = torch.ones(3, device="chameleon", requires_grad=True)
    Double.apply(x).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


def test_modified_saved_tensor_is_detected():
    x = torch.ones(3, device="chameleon", requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        y.sum().backward()


def test_gradcheck():
    x = torch.randn(3, 3, dtype=torch.double, device="chameleon")
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda t: (t @ t).tanh(), (x,))


def test_functorch():
    x = torch.randn(5, 3)
    native = torch.func.vmap(torch.func.grad(lambda r: r.sin().sum()))(x)
    ours = torch.func.vmap(torch.func.grad(lambda r: r.sin().sum()))(
        x.chameleon()
    )
    assert same_bits(ours, native)


@pytest.mark.parametrize("views", [True, False])
def test_gradients_through_views(views):
    grads = []
    for device in ("cpu", "chameleon"):
        x = torch.arange(24.0).view(2, 3, 4).to(device).requires_grad_()
        y = x.transpose(0, 2)[1:, :2] if views else x
        (y.reshape(-1)[::2] * 3).unfold(0, 2, 1).sum().backward()
        grads.append(x.grad)
    assert same_bits(*grads)


def test_anomaly_mode():
    x = torch.zeros(1, device="chameleon", requires_grad=True)
    with (
        pytest.raises(RuntimeError, match="nan"),
        pytest.warns(UserWarning, match="Error detected"),
        torch.autograd.detect_anomaly(check_nan=True),
    ):
        (x.sqrt() * 0).sum().backward()


def test_list_ops_count_versions(tight):
    """In chunks or at once, so that backward sees what was written since."""
    tight(1 << 20)
    for size in (8, 1 << 16):  # the second list takes several chunks
        weights = [
            torch.ones(size, device="chameleon", requires_grad=True)
            for _ in range(4)
        ]
        squares = sum(weight.square().sum() for weight in weights)
        with torch.no_grad():
            torch._foreach_mul_(weights, 2.0)
        assert [weight._version for weight in weights] == [1] * 4
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            squares.backward()
