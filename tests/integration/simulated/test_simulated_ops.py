"""PyTorch's operator database on a simulated device: shapes, and what fails."""

import json
import os
import sys

import pytest

# What does not work, and why.
_UNSUPPORTED = {
    "cov": "takes a turn by a value",
    "linalg.eig": "its backward checks a value",
    "geqrf": "no Meta kernel",
    "histogram": "no Meta kernel",
    "histogramdd": "no Meta kernel",
    "linalg.lstsq": "no Meta kernel",
    "linalg.lstsq.grad_oriented": "no Meta kernel",
    "sparse.mm.reduce": "sparse layouts",
    "sparse.sampled_addmm": "sparse layouts",
    "to_sparse": "sparse layouts",
    "as_strided.partial_views": "copying the sample cuts its storage",
    "tensor_split": "its indices belong on the CPU",
}

# Whose shapes differ from the CPU's, and why.
_SHAPES = {
    "argwhere": "depends on values",
    "combinations": "depends on values",
    "masked_select": "depends on values",
    "nonzero": "depends on values",
    "unique": "depends on values",
    "unique_consecutive": "depends on values",
    "native_batch_norm": "Meta has statistics in evaluation too",
    "_native_batch_norm_legit": "Meta has statistics in evaluation too",
}

_CODE = """
import itertools, json, warnings
import torch, torch_chameleon
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map_only

torch_chameleon.config.physical_device = "simulated"
warnings.simplefilter("ignore")

def moved(x):
    return tree_map_only(
        torch.Tensor,
        lambda t: t.detach().to("chameleon").requires_grad_(t.requires_grad)
        if t.layout == torch.strided else t,
        x,
    )

def tensors(x):
    return [t for t in tree_leaves(x) if isinstance(t, torch.Tensor)]

def check(op, sample):
    try:
        expected = op(sample.input, *sample.args, **sample.kwargs)
    except Exception:
        return  # not native's either
    args = moved(sample.args), moved(sample.kwargs)
    results = tensors(op(moved(sample.input), *args[0], **args[1]))
    for a, b in zip(tensors(expected), results, strict=False):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            shapes.add(op.full_name)
    roots = [r.real if r.is_complex() else r
             for r in results if r.requires_grad]
    if op.supports_autograd and roots:
        torch.autograd.backward(roots, [torch.ones_like(r) for r in roots])

failed, shapes, count = {}, set(), 0
for op in op_db:
    if torch.float32 not in op.supported_dtypes("cpu"):
        continue
    count += 1
    samples = op.sample_inputs(
        "cpu", torch.float32, requires_grad=op.supports_autograd)
    try:
        for sample in itertools.islice(samples, 3):
            check(op, sample)
    except Exception as error:
        failed[op.full_name] = str(error).splitlines()[0]
torch.chameleon.synchronize()
torch_chameleon._C.check_invariants(0, 2)
print(json.dumps([count, failed, sorted(shapes)]))
"""


@pytest.mark.slow
def test_operator_database(fresh):
    path = os.pathsep.join(sys.path)
    count, failed, shapes = json.loads(
        fresh(_CODE, PYTHONPATH=path).splitlines()[-1]
    )
    assert count > 600
    assert {k: v for k, v in failed.items() if k not in _UNSUPPORTED} == {}
    assert [name for name in shapes if name not in _SHAPES] == []
