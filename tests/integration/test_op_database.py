"""PyTorch's own operator database, bit for bit with the native device.

Every entry with a float32 variant, its first samples, forward and backward,
while everything is evicted before every op: results, strides and gradients.
"""

import warnings

import pytest
import torch
from support import same_bits
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map
from torch_chameleon import _C

SAMPLES = 6
PARTS = 12

# Entries that cannot be compared, each with its reason.
KNOWN = {
    "to_sparse": "sparse layouts are not supported",
    "sparse_sampled_addmm": "sparse layouts are not supported",
    "sparse_mm_reduce": "sparse layouts are not supported",
    "to": "its samples ask for CPU results",
    "tensor_split": "its samples put indices on the device; they must be CPU",
    "linalg.lstsq": "native itself varies with the operands' addresses",
    "chalf": "the CPU cannot compare complex32",
    "empty": "uninitialised memory",
    "empty_like": "uninitialised memory",
    "empty_permuted": "uninitialised memory",
    "empty_strided": "uninitialised memory",
    "new_empty": "uninitialised memory",
    "new_empty_strided": "uninitialised memory",
}

ENTRIES = [
    op for op in op_db if torch.float32 in op.dtypes and op.name not in KNOWN
]


def copy_to(device):
    def copy(value):
        if not isinstance(value, torch.Tensor):
            return value
        source = value.detach()
        copied = torch.empty_strided(
            source.size(), source.stride(), dtype=source.dtype, device=device
        ).copy_(source)
        return copied.requires_grad_(value.requires_grad)

    return copy


def tensors(tree):
    return [
        leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)
    ]


def run(op, sample, device):
    """Returns results and gradients; None where native itself refuses."""
    given, args, kwargs = tree_map(
        copy_to(device), (sample.input, sample.args, sample.kwargs)
    )
    if "device" in kwargs:
        kwargs["device"] = device
    torch.manual_seed(0)
    results = tensors(op(given, *args, **kwargs))
    sources = [
        leaf for leaf in tensors((given, args, kwargs)) if leaf.requires_grad
    ]
    roots = [result.sum() for result in results if result.requires_grad]
    if not roots or not sources:
        return results, []
    return results, torch.autograd.grad(roots, sources, allow_unused=True)


def equal(native, ours):
    if native is None or ours is None:
        return native is ours
    return (
        native.stride() == ours.stride()
        and native.dtype == ours.dtype
        and (same_bits(native, ours) or same_values(native, ours))
    )


def same_values(native, ours):
    """NaNs may differ in their payload, nothing else may."""
    ours = ours.detach().cpu()
    native = native.detach()
    return native.shape == ours.shape and torch.equal(
        torch.nan_to_num(native), torch.nan_to_num(ours)
    )


@pytest.mark.parametrize("part", range(PARTS))
def test_same_bits_as_native(part):
    different = []
    _C.set_stress("all", 0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for op in ENTRIES[part::PARTS]:
                samples = op.sample_inputs(
                    "cpu", torch.float32, requires_grad=op.supports_autograd
                )
                for _, sample in zip(range(SAMPLES), samples, strict=False):
                    try:
                        native = run(op, sample, "cpu")
                    except Exception:
                        continue  # a sample that native refuses proves nothing
                    ours = run(op, sample, "chameleon")
                    for one, other in zip(native, ours, strict=True):
                        if len(one) != len(other) or not all(
                            map(equal, one, other)
                        ):
                            different.append(op.formatted_name)
    finally:
        _C.set_stress("never", 0)
    assert different == []
