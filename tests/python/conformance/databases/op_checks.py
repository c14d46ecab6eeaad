"""What is done with one entry of an operator database.

Each check makes actions from the entry's samples: functions of a device that
return all that may be looked at, operands included.
"""

import itertools

import torch
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils._pytree import tree_leaves, tree_map

from conformance.harness import selection
from conformance.harness.gradients import gradients
from conformance.harness.placing import Placer
from conformance.harness.samples import samples_of, seeded


def tensors(tree):
    return [
        leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)
    ]


# Operands that CUDA, too, wants on the CPU, though samples have them elsewhere.
CPU_ARGUMENTS = frozenset({"tensor_split", "_refs.tensor_split"})

# Results whose keywords are not just `out`.
OUT_NAMES = {
    "_batch_norm_with_update": ("out", "save_mean", "save_invstd", "reserve")
}


# Dtypes that most entries take; the others are made from these.
SOURCES = (torch.float32, torch.int64, torch.complex64, torch.bool)

# Of up to a thousand of an entry and dtype, one in so many.
REFERENCES = 16


def placed(op, sample, device):
    """A sample's (input, args, kwargs) on a device."""
    placer = Placer(device)
    if op.name in CPU_ARGUMENTS:
        return placer(sample.input), sample.args, placer(sample.kwargs)
    return placer((sample.input, sample.args, sample.kwargs))


def _gradients(results, operands, device):
    """Gradients for weights that are the same on every device."""
    roots = [r for r in tensors(results) if r.requires_grad]
    sources = [o for o in tensors(operands) if o.requires_grad]
    if not roots or not sources:
        return ()
    generator = torch.Generator().manual_seed(7)
    weights = [
        torch.rand(r.shape, dtype=_real(r.dtype), generator=generator)
        .to(r.dtype)
        .to(device)
        for r in roots
    ]
    return gradients(roots, sources, weights)


def _real(dtype):
    return dtype.to_real() if dtype.is_complex else dtype


def call(op, function, sample, *, backward=False, copies=False):
    def action(device):
        operands = placed(op, sample, device)
        given, args, kwargs = operands
        if copies:  # what is written may be neither a leaf nor the sample
            given = tree_map(
                lambda t: t.clone() if isinstance(t, torch.Tensor) else t, given
            )
        results = function(given, *args, **kwargs)
        derived = _gradients(results, operands, device) if backward else ()
        return results, derived, given, operands

    return action


def _operands(sample):
    return sample.input, sample.args, sample.kwargs


def forward(op, dtype):
    for sample in samples_of(op, dtype):
        yield call(op, op, sample)


def reference(op, dtype):
    """More samples: extreme values, large, empty and broadcast shapes."""
    if op.reference_inputs_func is not None:
        samples = samples_of(op, dtype, make=op.reference_inputs_func)
        for number, sample in enumerate(samples):
            if selection.hashed(op.name, number) % REFERENCES == 0:
                yield call(op, op, sample)


def zero_size(op, dtype):
    """Lists of empty tensors."""
    for sample in seeded(op.sample_zero_size_inputs("cpu", dtype)):
        yield call(op, op, sample)


def backward(op, dtype):
    if _has_backward(op, dtype):
        for sample in samples_of(op, dtype, requires_grad=True):
            yield call(op, op, sample, backward=True)


def noncontiguous(op, dtype):
    grads = _has_backward(op, dtype)
    for sample in samples_of(op, dtype, requires_grad=grads):
        if all(t.layout == torch.strided for t in tensors(_operands(sample))):
            yield call(op, op, sample.noncontiguous(), backward=grads)


def method(op, dtype):
    if op.method_variant is not None:
        for sample in samples_of(op, dtype):
            yield call(op, op.method_variant, sample)


def operator(op, dtype):
    if op.operator_variant is not None:
        for sample in samples_of(op, dtype):
            yield call(op, op.operator_variant, sample)


def inplace(op, dtype):
    if op.inplace_variant is None:
        return
    grads = op.supports_inplace_autograd and _has_backward(op, dtype)
    for sample in samples_of(op, dtype, requires_grad=grads):
        yield call(op, op.inplace_variant, sample, backward=grads, copies=True)
    if op.inplace_operator_variant is not None:
        for sample in samples_of(op, dtype):
            yield call(op, op.inplace_operator_variant, sample, copies=True)


def _has_backward(op, dtype):
    return op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")


def errors(op, dtype):
    """Error inputs have dtypes of their own; they run once."""
    if op.error_inputs_func is None:
        return
    for error in seeded(op.error_inputs_func(op, "cpu")):
        yield call(op, op, error.sample_input)


def refused(op, dtype):
    """A dtype that the entry leaves out: a sample of another one, cast.

    Native refuses most of these, and works on some.
    """
    own = op.supported_dtypes("cpu")
    source = next((d for d in SOURCES if d in own), None)
    if source is None:
        return

    def cast(leaf):
        ours = isinstance(leaf, torch.Tensor) and leaf.dtype == source
        return leaf.to(dtype) if ours and leaf.layout == torch.strided else leaf

    for sample in itertools.islice(samples_of(op, source), 1, 2):
        given, args, kwargs = tree_map(cast, _operands(sample))
        other = SampleInput(given, args=args, kwargs=kwargs)
        yield call(op, op, other)


# ---- out= ------------------------------------------------------------------
def _right(t):
    return torch.empty_like(t)


def _empty(t):
    return torch.empty(0, dtype=t.dtype)


def _wrong_size(t):
    return torch.zeros((*t.shape, 2), dtype=t.dtype)


def _reversed_strides(t):
    return torch.zeros(t.shape[::-1], dtype=t.dtype).permute(
        tuple(reversed(range(t.dim())))
    )


def _spread(t):
    return torch.zeros((*t.shape, 2), dtype=t.dtype)[..., 1]


def _wider(t):
    wider = torch.complex128 if t.dtype.is_complex else torch.float64
    return torch.zeros(t.shape, dtype=wider)


def _narrower(t):
    return torch.zeros(t.shape, dtype=torch.int8)


# Native writes out of bounds here and corrupts its heap: tril and triu step
# through batches by one stride of `out`.
NATIVE_CORRUPTS = {
    (name, _reversed_strides)
    for name in ("tril", "triu", "lu_unpack", "linalg.lu")
}
# And writes float32 results to memory of oneDNN's own, not to `out`, which
# keeps what it had.
NATIVE_FORGETS = {("nn.functional.gelu", _reversed_strides)}

OUTS = (
    _right,
    _empty,
    _wrong_size,
    _reversed_strides,
    _spread,
    _wider,
    _narrower,
)


def out(op, dtype):
    """Results written to tensors of the right and of wrong make.

    All makes for a few samples, two for each of the others.
    """
    if not op.supports_out:
        return
    for number, sample in enumerate(samples_of(op, dtype)):
        try:
            results = op(sample.input, *sample.args, **sample.kwargs)
        except Exception:
            continue
        single = isinstance(results, torch.Tensor)
        made = tensors(results)
        if not made or any(t.layout != torch.strided for t in made):
            continue
        few = OUTS if number < 3 else (OUTS[number % 7], OUTS[-number % 7])
        for make_out in few:
            if (op.name, make_out) in NATIVE_CORRUPTS | NATIVE_FORGETS:
                continue
            outs = tree_map(
                lambda t, make_out=make_out: make_out(t.detach()).clone(
                    memory_format=torch.preserve_format
                ),
                results if single else tuple(results),
            )
            yield _out_call(op, sample, outs)


def _out_call(op, sample, outs):
    def action(device):
        placer = Placer(device)
        operands, out = placer((_operands(sample), outs))
        given, args, kwargs = operands
        names = OUT_NAMES.get(op.name)
        named = zip(names, out, strict=True) if names else [("out", out)]
        results = op(given, *args, **kwargs, **dict(named))
        return results, out, operands

    return action


CHECKS = {
    "forward": forward,
    "backward": backward,
    "noncontiguous": noncontiguous,
    "method": method,
    "operator": operator,
    "inplace": inplace,
    "out": out,
    "reference": reference,
    "errors": errors,
    "refused": refused,
}
FOREACH_CHECKS = {
    "forward": forward,
    "backward": backward,
    "noncontiguous": noncontiguous,
    "inplace": inplace,
    "zero_size": zero_size,
}
REFERENCE_CHECKS = {"forward": forward, "noncontiguous": noncontiguous}
