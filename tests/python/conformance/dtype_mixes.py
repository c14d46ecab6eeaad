"""Operators whose arguments do not all have the samples' dtype.

For a sample, each of its tensors in turn gets each other dtype.
"""

import itertools

import torch
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils._pytree import tree_map

from conformance.op_checks import SOURCES, tensors
from conformance.samples import samples_of

OTHERS = (
    *(torch.int64, torch.bool, torch.float64, torch.float16),
    *(torch.complex64, torch.int32, torch.uint8, torch.float32),
)


def _with(sample, target, dtype):
    """The sample with its target-th tensor cast; None where it has it."""
    numbers, cast = itertools.count(), []

    def change(leaf):
        if not isinstance(leaf, torch.Tensor) or next(numbers) != target:
            return leaf
        if leaf.dtype == dtype or leaf.layout != torch.strided:
            return leaf
        cast.append(True)
        return leaf.detach().to(dtype)

    given, args, kwargs = tree_map(
        change, (sample.input, sample.args, sample.kwargs)
    )
    return SampleInput(given, args=args, kwargs=kwargs) if cast else None


def dtype_mixes(op, samples=2):
    """Samples of an operator in which one tensor has another dtype."""
    own = op.supported_dtypes("cpu")
    source = next((d for d in SOURCES if d in own), None)
    if source is None:
        return
    several = (
        sample
        for sample in samples_of(op, source)
        if len(tensors((sample.input, sample.args, sample.kwargs))) > 1
    )
    for sample in itertools.islice(several, samples):
        count = len(tensors((sample.input, sample.args, sample.kwargs)))
        for target, dtype in itertools.product(range(min(count, 5)), OTHERS):
            mixed = _with(sample, target, dtype)
            if mixed is not None:
                yield f"tensor {target} as {dtype}", mixed
