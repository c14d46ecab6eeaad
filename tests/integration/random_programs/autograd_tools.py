"""Ways through autograd that a line can take."""

import threading

import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint


def flat(tree):
    """The tensors of lists, tuples and dicts."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, (list, tuple)):
        return [tensor for item in tree for tensor in flat(item)]
    return []


class Scaled(torch.autograd.Function):
    """Saves an output, writes its gradient in place, may fail."""

    @staticmethod
    def forward(ctx, x, factor, fails):
        y = torch.sin(x) * factor
        ctx.save_for_backward(x, y)
        ctx.factor, ctx.fails = factor, fails
        return y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        if ctx.fails:
            raise RuntimeError("planned failure in backward")
        grad = grad.clone()
        grad.mul_(torch.cos(x)).mul_(ctx.factor)
        return grad + 0 * y, None, None


class InPlace(torch.autograd.Function):
    """Writes its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.mul_(0.5).add_(0.25)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 0.5


class Several(torch.autograd.Function):
    """Three results, one of which has no gradient; None for gradients."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        ctx.set_materialize_grads(False)
        mask = a > 0
        ctx.mark_non_differentiable(mask)
        return a * b, a + b, mask

    @staticmethod
    def backward(ctx, grad_product, grad_sum, grad_mask):
        a, b = ctx.saved_tensors
        grad_a = grad_b = None
        if grad_product is not None:
            grad_a, grad_b = grad_product * b, grad_product * a
        if grad_sum is not None:
            grad_a = grad_sum if grad_a is None else grad_a + grad_sum
            grad_b = grad_sum.clone() if grad_b is None else grad_b + grad_sum
        return grad_a, grad_b


class BackwardInside(torch.autograd.Function):
    """A backward inside of a backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            z = x.detach().requires_grad_()
            (z.tanh() * grad).sum().backward()
        return z.grad


def square_sum(tensors):
    return sum(
        t.abs().square().sum() if t.is_complex() else t.float().square().sum()
        for t in tensors
    )


def gradients(inputs, function, order=1):
    """Of function(*inputs), over fresh leaves; of their gradients' too."""
    leaves = [
        x.detach()
        .clone()
        .requires_grad_(x.is_floating_point() or x.is_complex())
        for x in inputs
    ]
    results = [y for y in flat(function(*leaves)) if y.requires_grad]
    if not results:
        return []
    loss = square_sum(results)
    if order == 2:
        sources = [x for x in leaves if x.requires_grad]
        first = torch.autograd.grad(
            loss, sources, create_graph=True, allow_unused=True
        )
        found = [g for g in first if g is not None]
        loss = square_sum(g for g in found if g.requires_grad)
        if not isinstance(loss, torch.Tensor):
            return found
    loss.backward()
    return [x.grad for x in leaves if x.grad is not None]


def chain(x, draws, steps):
    """A chain of small differentiable steps: hooks, checkpoints, writes."""
    x = x.detach().clone().float().requires_grad_()
    y = x * 1.0
    kept = []
    for _ in range(steps):
        kind = draws.randrange(12)
        if kind == 0:
            y = torch.tanh(y)
        elif kind == 1:
            fits = kept and kept[-1].shape == y.shape
            y = y + kept[-1] if fits else y * 1.25
        elif kind == 2:
            y = F.dropout(y, 0.2)
        elif kind == 3:
            y = y.clone().mul_(0.75)
        elif kind == 4:
            y = Scaled.apply(y, 0.5, False)
        elif kind == 5:
            y.register_hook(lambda grad: grad * 0.5)
        elif kind == 6:
            halves = y.dim() and y.shape[-1] > 1
            y = (
                torch.cat([y[..., ::2], y[..., 1::2]], -1)
                if halves
                else y.neg()
            )
        elif kind == 7:
            kept.append(y)
        elif kind == 8:
            y = checkpoint(
                lambda t: torch.sigmoid(t) * torch.rand_like(t),
                y,
                use_reentrant=False,
            )
        elif kind == 9:
            y = InPlace.apply(y.clone())
        elif kind == 10:
            y = y.softmax(-1) if y.dim() else y.exp()
        else:
            y = F.gelu(y).requires_grad_()
    (y.square().mean() if y.numel() else y.sum()).backward()
    return x.grad


def hooked(x):
    """Hooks that keep, change and take away gradients."""
    x = x.detach().clone().float().requires_grad_()
    seen = []
    y = x.sin()
    y.retain_grad()
    y.register_hook(lambda grad: seen.append(grad.clone()))
    z = y.mul(2)
    z.register_hook(lambda grad: grad.clamp_(-1, 1))

    def take(leaf):
        seen.append(leaf.grad.clone())
        leaf.grad = None

    x.register_post_accumulate_grad_hook(take)
    z.sum().backward()
    return [y.grad, *seen]


def packed(x):
    """Saved tensors that wait on the host."""

    def pack(t):
        return t.device, t.detach().to("cpu").clone()

    def unpack(pair):
        return pair[1].to(pair[0])

    x = x.detach().clone().float().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = (x.exp() * x.tanh()).sigmoid().sum()
    y.backward()
    return x.grad


def nested_backward(x):
    x = x.detach().clone().float().requires_grad_()
    BackwardInside.apply(x * 1.5).sum().backward()
    return x.grad


def in_thread(function):
    """The result, or the exception, of a call on a thread of its own."""
    box = []

    def work():
        try:
            box.append((function(), None))
        except Exception as error:
            box.append((None, error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    ((result, error),) = box
    if error is not None:
        raise error
    return result
