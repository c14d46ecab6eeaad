"""Derivatives and transforms of one entry of the operator database.

As op_checks: each check makes actions from the entry's samples. What is
differentiated is a function of the sample's real or complex operands; all else
is held.
"""

import torch
from torch import func
from torch.autograd import forward_ad
from torch.utils._pytree import tree_flatten, tree_unflatten

from conformance.databases.op_checks import placed, tensors
from conformance.harness.gradients import gradients, in_order
from conformance.harness.samples import samples_of


def _is_number(leaf):
    return isinstance(leaf, torch.Tensor) and (
        leaf.is_floating_point() or leaf.is_complex()
    )


def _numbers(tree):
    return tuple(t for t in tensors(tree) if _is_number(t))


class Call:
    """A sample on a device: a function of its numbers, and the numbers."""

    def __init__(self, op, sample, device):
        self.op = op
        self.leaves, self.structure = tree_flatten(placed(op, sample, device))
        self.where = [i for i, x in enumerate(self.leaves) if _is_number(x)]
        self.numbers = tuple(self.leaves[i] for i in self.where)

    def with_leaves(self, leaves):
        given, args, kwargs = tree_unflatten(leaves, self.structure)
        return self.op(given, *args, **kwargs)

    def __call__(self, *numbers):
        leaves = list(self.leaves)
        for i, number in zip(self.where, numbers, strict=True):
            leaves[i] = number
        return _numbers(self.with_leaves(leaves))

    def scalar(self, *numbers):
        """A real scalar of the numbers, for what wants one."""
        return sum(r.abs().square().sum() for r in self(*numbers))


def like(numbers, seed=7):
    """Directions, the same on every device."""
    draws = torch.Generator().manual_seed(seed)
    return tuple(
        torch.rand(t.shape, generator=draws, dtype=torch.float64)
        .to(t.dtype)
        .to(t.device)
        for t in numbers
    )


def _action(op, sample, act):
    @in_order
    def action(device):
        try:
            return act(Call(op, sample, device))
        except RuntimeError as error:
            # TorchScript's interpreter, which some derivatives run in, wraps
            # what it meets.
            if " out of memory. " in str(error):
                raise torch.OutOfMemoryError(str(error)) from None
            raise

    return action


def _check(act, condition=lambda op: True, requires_grad=False):
    def check(op, dtype):
        if condition(op) and dtype in op.supported_backward_dtypes("cpu"):
            for sample in samples_of(op, dtype, requires_grad=requires_grad):
                yield _action(op, sample, act)

    return check


def _double_backward(call):
    sources = [n for n in call.numbers if n.requires_grad]
    roots = [r for r in call(*call.numbers) if r.requires_grad]
    if not roots or not sources:
        return ()
    first = gradients(roots, sources, like(roots), create_graph=True)
    roots = [g for g in first if g is not None and g.requires_grad]
    if not roots:
        return first
    return first, gradients(roots, sources, like(roots, 8))


def _forward_ad(call):
    with forward_ad.dual_level():
        duals = [
            forward_ad.make_dual(n, t)
            for n, t in zip(call.numbers, like(call.numbers), strict=True)
        ]
        return [
            (pair.primal, pair.tangent)
            for pair in map(forward_ad.unpack_dual, call(*duals))
        ]


def _jvp(call):
    return func.jvp(call, call.numbers, like(call.numbers))


def _vjp(call):
    results, pull = func.vjp(call, *call.numbers)
    return results, pull(like(results))


def _grad(call):
    if not call.numbers:
        return ()
    which = tuple(range(len(call.numbers)))
    return func.grad_and_value(call.scalar, argnums=which)(*call.numbers)


def _small(call):
    return 0 < sum(n.numel() for n in call.numbers) <= 64


def _jacobians(call):
    if not _small(call):
        return ()
    which = tuple(range(len(call.numbers)))
    return func.jacrev(call, which)(*call.numbers)


def _hessian(call):
    if not _small(call) or any(n.is_complex() for n in call.numbers):
        return ()
    which = tuple(range(len(call.numbers)))
    return func.hessian(call.scalar, which)(*call.numbers)


def _vmap(call):
    """Over all tensors stacked twice, numbers or not."""
    where = [
        i for i, x in enumerate(call.leaves) if isinstance(x, torch.Tensor)
    ]
    stacked = [torch.stack([call.leaves[i]] * 2) for i in where]

    def one(*given):
        leaves = list(call.leaves)
        for i, leaf in zip(where, given, strict=True):
            leaves[i] = leaf
        return tuple(tensors(call.with_leaves(leaves)))

    return func.vmap(one, randomness="different")(*stacked)


def vmap(op, dtype):
    for sample in samples_of(op, dtype):
        if tensors((sample.input, sample.args, sample.kwargs)):
            yield _action(op, sample, _vmap)


CHECKS = {
    "double_backward": _check(
        _double_backward, lambda op: op.supports_gradgrad, requires_grad=True
    ),
    "forward_ad": _check(_forward_ad, lambda op: op.supports_forward_ad),
    "jvp": _check(_jvp, lambda op: op.supports_forward_ad),
    "vjp": _check(_vjp, lambda op: op.supports_autograd),
    "grad": _check(_grad, lambda op: op.supports_autograd),
    "jacrev": _check(_jacobians, lambda op: op.supports_autograd),
    "hessian": _check(_hessian, lambda op: op.supports_fwgrad_bwgrad),
    "vmap": vmap,
}
