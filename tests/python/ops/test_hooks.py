"""Hooks of every kind see chameleon tensors, when native sees CPU tensors."""

import pytest
import torch
from support import on_both, same_bits
from torch import nn
from torch.autograd.graph import (
    Node,
    register_multi_grad_hook,
    saved_tensors_hooks,
)
from torch.utils.checkpoint import checkpoint


def leaf(device, seed=0):
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(3, 4, generator=draws).to(device).requires_grad_()


def test_tensor_hooks():
    def run(device):
        seen = []
        x = leaf(device)
        y = x * 2
        y.register_hook(lambda g: seen.append(g * 1) or g * 3)
        removed = y.register_hook(lambda g: g * 100)
        removed.remove()
        x.register_post_accumulate_grad_hook(
            lambda p: seen.append(p.grad.clone())
        )
        y.retain_grad()
        (y * y).sum().backward()
        return *seen, x.grad, y.grad

    on_both(run)


def test_multi_grad_hooks():
    def run(device):
        seen = []
        x, y = leaf(device), leaf(device, 1)
        handles = [
            register_multi_grad_hook((x, y), lambda grads: seen.extend(grads)),
            register_multi_grad_hook(
                (x, y), lambda grad: seen.append(grad * 2), mode="any"
            ),
        ]
        (x * y).sum().backward()
        for handle in handles:
            handle.remove()
        return seen

    on_both(run)


def test_node_hooks():
    def run(device):
        seen = []
        x = leaf(device)
        y = x.exp()
        node = y.grad_fn
        assert isinstance(node, Node)
        node.register_prehook(lambda grads: (grads[0] * 2,))
        node.register_hook(lambda inputs, outputs: seen.extend(inputs))
        y.sum().backward()
        return *seen, x.grad

    on_both(run)


def test_module_hooks():
    def run(device):
        seen = []
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).to(device)
        net[0].register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        net[0].register_forward_hook(
            lambda m, args, kwargs, out: out + 1, with_kwargs=True
        )
        net[1].register_full_backward_pre_hook(lambda m, g: (g[0] * 3,))
        net[1].register_full_backward_hook(
            lambda m, inputs, outputs: seen.extend([*inputs, *outputs])
        )
        net.register_state_dict_pre_hook(lambda *_: seen.append("state"))
        net.register_load_state_dict_post_hook(lambda *_: seen.append("load"))
        net(leaf(device)).square().sum().backward()
        net.load_state_dict(net.state_dict())
        return *seen, *(p.grad for p in net.parameters())

    on_both(run)


def test_optimizer_hooks():
    def run(device):
        seen = []
        x = leaf(device)
        optimizer = torch.optim.SGD([x], 0.1, foreach=True)
        optimizer.register_step_pre_hook(lambda *_: seen.append(x.grad.clone()))
        optimizer.register_step_post_hook(
            lambda *_: seen.append(x.detach().clone())
        )
        x.square().sum().backward()
        optimizer.step()
        return seen

    on_both(run)


def test_saved_tensor_hooks():
    """Packed to the CPU by hand, as offloading recipes do."""

    def run(device):
        moved = []

        def pack(tensor):
            moved.append(tensor.shape)
            return tensor.device, tensor.cpu()

        def unpack(packed):
            return packed[1].to(packed[0])

        x = leaf(device)
        with saved_tensors_hooks(pack, unpack):
            y = (x.exp() * x).sin().sum()
        y.backward()
        return *moved, x.grad

    on_both(run)


def test_saved_tensors_may_be_refused():
    def forbid(tensor):
        raise ValueError("no")

    x = leaf("chameleon")
    with (
        saved_tensors_hooks(forbid, forbid),
        pytest.raises(ValueError, match="no"),
    ):
        x.exp()
    with torch.autograd.graph.disable_saved_tensors_hooks("off"):
        x.exp().sum().backward()
    assert same_bits(x.grad, x.exp())


def test_mutation_inside_a_graph_may_be_allowed():
    def run(device):
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            x = leaf(device)
            y = x * 1
            z = y.square().sum()
            y.add_(1)
            z.backward()
        return [x.grad]

    on_both(run)


# ---- checkpoints


def block(dropout):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, 4)
    )


@pytest.mark.parametrize("preserve_rng_state", [True, False])
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_nested_checkpoints(use_reentrant, preserve_rng_state):
    def run(device):
        net = block(0.5 if preserve_rng_state else 0.0).to(device)
        how = {
            "use_reentrant": use_reentrant,
            "preserve_rng_state": preserve_rng_state,
        }

        def inner(x):
            return checkpoint(net, x, **how) + 1

        x = leaf(device)
        torch.manual_seed(3)
        y = checkpoint(lambda x: inner(inner(x)), x, **how)
        y.square().sum().backward()
        return y, x.grad, *(p.grad for p in net.parameters())

    on_both(run)


def test_early_stop_and_kept_graph():
    def run(device):
        calls = []
        x = leaf(device)

        def function(x):
            calls.append(1)
            y = x.exp()
            calls.append(2)
            return y.sin() * 2

        y = checkpoint(function, x, use_reentrant=False)
        y.sum().backward(retain_graph=True)
        y.sum().backward()
        return *calls, x.grad

    on_both(run)


def test_checkpoint_notices_another_recomputation():
    x = leaf("chameleon")
    shapes = iter([4, 5])

    def function(x):
        return x.exp().new_ones(next(shapes)).mul(x.sum()).exp()

    y = checkpoint(function, x, use_reentrant=False)
    with pytest.raises(
        torch.utils.checkpoint.CheckpointError, match="different metadata"
    ):
        y.sum().backward()


def test_checkpoint_under_autocast():
    def run(device):
        net = block(0.0).to(device)
        x = leaf(device)
        with torch.autocast(device, torch.bfloat16):
            y = checkpoint(net, x, use_reentrant=False)
        y.float().sum().backward()
        return y, x.grad

    on_both(run)
