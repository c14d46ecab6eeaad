"""Samples of operators in which one tensor, each in turn, is another one.

Operands of several dtypes take other ways than those of one do; empty ones
tempt to return before what native checks.
"""

import itertools

import torch
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils._pytree import tree_map

from conformance.databases.op_checks import SOURCES, tensors
from conformance.harness.samples import samples_of

_DTYPES = (
    *(torch.int64, torch.bool, torch.float64, torch.float16),
    *(torch.complex64, torch.int32, torch.uint8, torch.float32),
)
_MOST_TENSORS = 5


def _cast(dtype):
    def change(tensor):
        return None if tensor.dtype == dtype else tensor.to(dtype)

    return change


def _first_rows(tensor):
    return tensor[:0].clone() if tensor.dim() and tensor.numel() else None


def _last_columns(tensor):
    return tensor[..., :0].clone() if tensor.dim() > 1 else None


def _one_dimension(tensor):
    return tensor.new_empty(0) if tensor.dim() != 1 else None


def _none_left(tensor):
    return tensor.new_empty((3, 0)) if tensor.numel() else None


CASTS = tuple(map(_cast, _DTYPES))
EMPTIED = (_first_rows, _last_columns, _one_dimension, _none_left)


def _operands(sample):
    return sample.input, sample.args, sample.kwargs


def _with(sample, target, change):
    """The target-th tensor changed; None where there is nothing to change."""
    numbers, done = itertools.count(), []

    def visit(leaf):
        if not isinstance(leaf, torch.Tensor) or next(numbers) != target:
            return leaf
        if leaf.layout != torch.strided:
            return leaf
        changed = change(leaf.detach())
        done.append(changed is not None)
        return changed if done[0] else leaf

    given, args, kwargs = tree_map(visit, _operands(sample))
    return SampleInput(given, args=args, kwargs=kwargs) if any(done) else None


def changed_samples(op, changes, samples=2, least=1):
    """Of an operator's first samples with at least so many tensors."""
    own = op.supported_dtypes("cpu")
    source = next((d for d in SOURCES if d in own), None)
    if source is None:
        return
    several = (
        sample
        for sample in samples_of(op, source)
        if len(tensors(_operands(sample))) >= least
    )
    for sample in itertools.islice(several, samples):
        count = min(len(tensors(_operands(sample))), _MOST_TENSORS)
        for target, change in itertools.product(range(count), changes):
            other = _with(sample, target, change)
            if other is not None:
                yield other
