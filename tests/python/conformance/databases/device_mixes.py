"""Samples with some operands on the CPU, and what CUDA does with them.

FakeTensorMode knows what CUDA would do, without a GPU, for most calls. Where it
is known to be wrong the tables say so, with the place that shows it.
"""

import itertools

import torch
from support import ROOT
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._pytree import tree_flatten, tree_unflatten

from conformance.harness.parity_cases import (
    dtype_of,
    is_dense,
    moved_to,
    tensors_in,
)
from conformance.harness.samples import samples_of

HERE, CPU, SCALAR = "here", "cpu", "0-dim cpu"  # where an operand is
UNKNOWN = "unknown"  # FakeTensorMode cannot tell

# Ops whose CUDA wrappers compare the devices of all operands
# (torchgen/dest/register_dispatch_key.py:273): they refuse 0-dim tensors on
# the CPU, which FakeTensorMode takes for every op
# (torch/_subclasses/fake_tensor.py:976).
SAME_DEVICE_OPS = {
    line.strip().strip('",')
    for line in (ROOT / "kernels/same_device_ops.inc").read_text().split("\n")
    if line.startswith('"')
}

_OUT = (
    "the kernel makes its result on the first operand's device, and "
    "TensorIterator takes no result from the CPU (aten/src/ATen/"
    "TensorIterator.cpp, compute_types); FakeTensorMode compares operands only"
)
_INNER = (
    "the kernel is composed of ops that refuse the mix; FakeTensorMode "
    "compares the operands of the whole only (fake_tensor.py:976)"
)
_CONVOLUTION = (
    "FakeTensorMode's own rule looks at the input's device only "
    "(fake_impls.py:1308); cudnn_convolution's wrapper compares all"
)
_INDEX = (
    "FakeTensorMode's own rule takes indices from anywhere (fake_impls.py:1199,"
    " :1256); CUDA wants them on the CPU or beside self (aten/src/ATen/native/"
    "TensorAdvancedIndexing.cpp, make_info)"
)
_COPIES = (
    "the kernel copies src into a view of a clone, and copies go between "
    "devices (aten/src/ATen/native/TensorShape.cpp); FakeTensorMode refuses"
)

# Entries of op_db (by formatted_name) for which FakeTensorMode is wrong.
FAKE_IS_WRONG = {
    "block_diag": "compares devices itself, scalars included (TensorShape.cpp)",
    "logical_and": _OUT,
    "logical_or": _OUT,
    "logical_xor": _OUT,
    "masked_fill": _INNER,
    "nn_functional_binary_cross_entropy_with_logits": _INNER,
    "nn_functional_soft_margin_loss": _INNER,
    "index_fill": _INNER,
    "linalg_pinv": _INNER,
    "_unsafe_masked_index_put_accumulate": _INNER,
    "nn_functional_conv1d": _CONVOLUTION,
    "nn_functional_conv2d": _CONVOLUTION,
    "nn_functional_conv3d": _CONVOLUTION,
    "nn_functional_conv_transpose1d": _CONVOLUTION,
    "nn_functional_conv_transpose2d": _CONVOLUTION,
    "nn_functional_conv_transpose3d": _CONVOLUTION,
    "__getitem__": _INDEX,
    "index_put": _INDEX,
    "_unsafe_masked_index": (
        "_unsafe_index is index on every device, and takes indices from the "
        "CPU; FakeTensorMode has that rule for index only (fake_impls.py:1199)"
    ),
    "select_scatter": _COPIES,
    "as_strided_scatter": _COPIES,
}


_RESULT = (
    "the op compares the devices of its result and operand itself "
    "(aten/src/ATen/native/Resize.cpp, resize_output_check); FakeTensorMode "
    "gives the result its device without a look"
)
_VALUE = (
    "start and end are read as numbers, from any device "
    "(aten/src/ATen/native/RangeFactories.cpp); FakeTensorMode refuses"
)

_SCALARS = (
    "FakeTensorMode is right for another reason (a decomposition in Python): "
    "CUDA takes one 0-dim tensor from the CPU, not two (aten/src/ATen/"
    "TensorIterator.cpp, max_cpu_scalars_on_non_cpu_), and chameleon does not "
    "count them, as FakeTensorMode does not for the other element-wise ops"
)

# The same for out=, with the operands in one place and the result in another.
FAKE_IS_WRONG_ABOUT_OUT = {
    "alias_copy": _RESULT,
    "expand_copy": _RESULT,
    "permute_copy": _RESULT,
    "slice_scatter": _RESULT,
    "t_copy": _RESULT,
    "transpose_copy": _RESULT,
    "unfold_copy": _RESULT,
    "unsqueeze_copy": _RESULT,
    "logcumsumexp": _INNER,
    "floor_divide": _SCALARS,
    "ldexp": _SCALARS,
    "linspace_tensor_overload": _VALUE,
    "logspace_tensor_overload": _VALUE,
}


def _placed(leaf, where, device):
    if where == HERE:
        return moved_to(device)(leaf)
    if where == SCALAR:
        leaf = leaf.flatten()[0]
    return moved_to("cpu")(leaf)


def _fake(leaf, where):
    """As `_placed`, under a FakeTensorMode."""
    return torch.empty_strided(
        () if where == SCALAR else leaf.size(),
        () if where == SCALAR else leaf.stride(),
        dtype=leaf.dtype,
        device="cuda" if where == HERE else "cpu",
    )


def outcome(run):
    """The exception, or where the results are."""
    try:
        results = run()
    except Exception as error:
        return error
    return tuple(
        HERE if result.device.type in ("cuda", "chameleon") else CPU
        for result in tensors_in(results)
    )


def is_unknown(result):
    """FakeTensorMode needs values or a rule that it does not have."""
    return isinstance(
        result,
        (
            DataDependentOutputException,
            DynamicOutputShapeException,
            UnsupportedOperatorException,
        ),
    )


def as_text(result):
    return type(result).__name__ if isinstance(result, Exception) else result


class Sample:
    """One sample of an entry of op_db."""

    def __init__(self, op, sample):
        self._op = op
        self._leaves, self._spec = tree_flatten(
            (sample.input, sample.args, sample.kwargs)
        )
        self._at = [
            i
            for i, leaf in enumerate(self._leaves)
            if isinstance(leaf, torch.Tensor)
        ]
        self.operands = [self._leaves[i] for i in self._at]

    def _call(self, operands, device, **options):
        leaves = [
            torch.device(device) if isinstance(leaf, torch.device) else leaf
            for leaf in self._leaves
        ]
        for i, operand in zip(self._at, operands, strict=True):
            leaves[i] = operand
        given, args, kwargs = tree_unflatten(leaves, self._spec)
        return self._op(given, *args, **kwargs, **options)

    def found(self, mix, device="chameleon"):
        """What happens with operand i at mix[i]."""
        operands = [
            _placed(operand, where, device)
            for operand, where in zip(self.operands, mix, strict=True)
        ]
        return outcome(lambda: self._call(operands, device))

    def expected(self, mix):
        """What FakeTensorMode says of CUDA."""
        with FakeTensorMode():
            operands = [
                _fake(operand, where)
                for operand, where in zip(self.operands, mix, strict=True)
            ]
            result = outcome(lambda: self._call(operands, "cuda"))
        return UNKNOWN if is_unknown(result) else result

    def with_out(self, operands_at, out_at):
        """Expected and found, for a result that is given."""
        result = self._call(self.operands, "cpu")

        def run(place, device):
            operands = [
                place(operand, operands_at) for operand in self.operands
            ]
            out = place(result, out_at)
            return outcome(lambda: self._call(operands, device, out=out))

        with FakeTensorMode():
            expected = run(_fake, "cuda")
        found = run(
            lambda leaf, where: _placed(leaf, where, "chameleon"), "chameleon"
        )
        return UNKNOWN if is_unknown(expected) else expected, found

    def has_one_result(self):
        """Native gives one tensor."""
        try:
            return torch.is_tensor(self._call(self.operands, "cpu"))
        except Exception:
            return False

    def is_known(self):
        """FakeTensorMode can run it without a mix."""
        return isinstance(self.expected([HERE] * len(self.operands)), tuple)

    def mixes(self):
        """All mixes of a few operands; each operand apart of many."""
        count = len(self.operands)
        if count <= 3:
            every = itertools.product((HERE, CPU, SCALAR), repeat=count)
        else:
            every = [
                tuple(one if i == j else rest for j in range(count))
                for i in range(count)
                for one, rest in ((CPU, HERE), (SCALAR, HERE), (HERE, CPU))
            ]
        for mix in every:
            if HERE not in mix or set(mix) == {HERE}:
                continue
            on_cpu = [CPU if where == HERE else where for where in mix]
            # Where the values alone do not fit, the device is no question.
            if isinstance(self.found(on_cpu, "cpu"), tuple):
                yield mix


def kinds_of_samples(op, limit=None, least=2):
    """Samples that differ in their operands' kinds, not in values or sizes."""
    seen = set()
    samples = samples_of(op, dtype_of(op))
    for sample in itertools.islice(samples, None if limit is None else 40):
        tree = (sample.input, sample.args, sample.kwargs)
        operands = tensors_in(tree)
        kind = (
            str(tree_flatten(tree)[1]),
            tuple(operand.dim() == 0 for operand in operands),
        )
        if (
            len(operands) < least
            or len(operands) > 6
            or kind in seen
            or not is_dense(tree)
            or any(operand.numel() == 0 for operand in operands)
        ):
            continue
        seen.add(kind)
        yield Sample(op, sample)
        if limit is not None and len(seen) >= limit:
            return
