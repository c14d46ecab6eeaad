"""The database of jagged nested tensors, a wrapper subclass."""

import itertools

import pytest
import torch
from torch.testing._internal.opinfo.definitions.nested import njt_op_db
from torch.utils._pytree import tree_map

from conformance.op_checks import tensors
from conformance.samples import seeded
from conformance.suite import Suite

ENTRIES = {
    op.formatted_name: op
    for op in njt_op_db
    if op.supports_njt and torch.float32 in op.dtypes
}
PAGERS = ("never", "all")
SAMPLES = 3  # of each, by default


def plain(leaf):
    """What a nested tensor is made of."""
    if isinstance(leaf, torch.Tensor) and leaf.is_nested:
        return leaf.values(), leaf.offsets().clone()
    return leaf


def call(op, sample, grad):
    def place(leaf, device):
        if isinstance(leaf, torch.Tensor):
            moved = leaf.detach().to(device)
            return moved.requires_grad_(leaf.requires_grad)
        return leaf

    def action(device):
        given, args, kwargs = operands = tree_map(
            lambda leaf: place(leaf, device),
            (sample.input, sample.args, sample.kwargs),
        )
        results = op.op(given, *args, **kwargs)
        roots = [r for r in tensors(results) if r.requires_grad]
        sources = [o for o in tensors(operands) if o.requires_grad]
        gradients = ()
        if grad and roots and sources:
            gradients = torch.autograd.grad(
                sum((r.values() if r.is_nested else r).sum() for r in roots),
                sources,
                allow_unused=True,
            )
        return tree_map(plain, (results, gradients))

    return action


def run(name, limit):
    op, suite = ENTRIES[name], Suite("nested")
    dtype = torch.float32
    for check, grad in (("forward", False), ("backward", True)):
        if grad and dtype not in op.supported_backward_dtypes("cpu"):
            continue
        samples = seeded(op.sample_inputs_func(op, "cpu", dtype, grad))
        actions = (call(op, sample, grad) for sample in samples)
        suite.case(
            name,
            check,
            dtype,
            # With more samples native crashes in some backward passes.
            itertools.islice(actions, SAMPLES if grad else limit),
            PAGERS,
            complete=limit is None,
        )
    suite.verify()


@pytest.mark.sample
@pytest.mark.parametrize("name", ENTRIES)
def test_sample_of_op(name):
    run(name, SAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
def test_op(name):
    run(name, None)
