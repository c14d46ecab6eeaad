"""Composites with arguments that their schemas allow, natively and here.

    python -m conformance.databases.composites PART/PARTS TRIES

A composite that reaches for a kernel of its argument's device, or for memory,
finds none here, and may end the process. So each runs in a fork, and what
crashed is told like what differed: a line each.
"""

import os
import random
import signal
import sys
import tempfile

import torch
import torch_chameleon
from torch.utils._pytree import tree_map

from conformance.harness.compare import difference, observe
from conformance.harness.placing import Placer
from conformance.harness.selection import hashed

_KEYS = (
    "CompositeExplicitAutograd",
    "CompositeImplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)
_SHAPES = ((4,), (4, 4), (2, 4, 4), (2, 3, 4, 4), (), (0,))
_DTYPES = (
    *(torch.float32, torch.int64, torch.float64, torch.bool),
    torch.complex64,
)
_DEVICE = object()
_SECONDS = 100  # that an op may take

# Natively they show memory that nobody has written, or read past its end where
# dtypes do not match.
UNINITIALISED = (
    *("aten::empty", "aten::new_empty", "aten::resize", "aten::set"),
    *("aten::_resize_output", "aten::_weight_norm"),
    *("aten::_log_softmax_backward_data", "aten::_softmax_backward_data"),
    *("aten::_empty_affine", "aten::_reshape_alias_copy"),
)
# Natively they read past an operand's end, where nothing stops them.
PAST_THE_END = (
    *("aten::_sobol_engine_draw", "aten::_new_zeros_with_same_feature_meta"),
)
# LAPACK's least squares vary with the operands' addresses.
VARY = ("aten::linalg_lstsq",)
# Of other layouts, or where a tensor is: sentences of their own, or CUDA's.
REFUSED = (
    *("aten::_sparse", "aten::sparse", "aten::_to_sparse", "aten::to_sparse"),
    *("aten::_nested", "aten::gather_backward", "aten::_gather_sparse"),
    *("aten::pin_memory", "aten::_pin_memory", "aten::_lazy_clone"),
    *("aten::_copy_from", "aten::_autocast_to", "aten::tensor_split"),
    *("aten::_validate_sparse", "aten::_pad_packed_sequence"),
    *("aten::_saturate_weight_to_fp16", "aten::choose_qparams_optimized"),
    *("aten::fbgemm_", "aten::quantized_", "aten::embedding_sparse_backward"),
    *("aten::_cast_", "aten::_convert_indices", "aten::_test_serialization"),
    *("aten::to_mkldnn", "aten::_to_dense", "aten::to_dense"),
    *("aten::randint_like", "aten::_pack_padded_sequence_backward"),
)


def names():
    """All composites of aten."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return sorted(
        name
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and any(has(name, key) for key in _KEYS)
    )


def find(name):
    """The op of a name; None for those without a Python one."""
    base, _, overload = name.removeprefix("aten::").partition(".")
    try:
        return getattr(getattr(torch.ops.aten, base), overload or "default")
    except AttributeError:
        return None


class Arguments:
    """Draws arguments for a schema; most tensors of a call are alike."""

    def __init__(self, seed):
        self.draws = random.Random(seed)

    def of(self, schema):
        """(args, kwargs); LookupError: of a kind that is not made here."""
        self.shape = self.draws.choice(_SHAPES[:4] + _SHAPES[:3])
        self.dtype = self.draws.choice([*_DTYPES, *[torch.float32] * 3])
        args, kwargs = [], {}
        for argument in schema.arguments:
            optional = argument.kwarg_only and argument.has_default_value()
            if optional and self.draws.random() < 0.5:
                continue
            value = self._value(argument.type, argument.name)
            if argument.kwarg_only:
                kwargs[argument.name] = value
            else:
                args.append(value)
        return args, kwargs

    def _tensor(self):
        draws = self.draws
        alike = draws.random() < 0.75
        shape = self.shape if alike else draws.choice(_SHAPES)
        alike = draws.random() < 0.6
        dtype = self.dtype if alike else draws.choice(_DTYPES)
        generator = torch.Generator().manual_seed(draws.randrange(1 << 20))
        if dtype == torch.bool:
            return torch.rand(shape, generator=generator) > 0.5
        if dtype == torch.int64:
            return torch.randint(0, 4, shape, generator=generator)
        return torch.rand(shape, generator=generator, dtype=dtype)

    def _value(self, type_, name):
        draws, kind = self.draws, type_.kind()
        if kind == "OptionalType":
            if name == "dtype":
                return draws.choice([None, torch.float64])
            known = name in ("layout", "device", "pin_memory", "generator")
            if known or draws.random() < 0.4:
                return None
            return self._value(type_.getElementType(), name)
        if kind == "ListType":
            return self._list(type_.getElementType(), name)
        if kind == "TensorType":
            return self._tensor()
        if name == "dtype":
            return torch.float32
        if name == "layout":
            return torch.strided
        choices = {
            "IntType": (0, 1, -1, 2, 1, 0, 3),
            "SymIntType": (0, 1, -1, 2, 1, 0, 3),
            "FloatType": (0.5, 1.0, 2.0, 0.0),
            "BoolType": (True, False),
            "NumberType": (1, 2, 0.5, True),
            "StringType": ("mean", "none", "linear", "sum", "ij", "floor"),
            "DeviceObjType": (_DEVICE,),
            "ScalarTypeType": (torch.float32,),
            "LayoutType": (torch.strided,),
            "MemoryFormatType": (torch.contiguous_format,),
            "GeneratorType": (None,),
        }
        if kind not in choices:
            raise LookupError(kind)
        return draws.choice(choices[kind])

    def _list(self, element, name):
        draws = self.draws
        if element.kind() in ("IntType", "SymIntType"):
            length = draws.choice([1, 2, 2, len(self.shape) or 1])
            return [draws.choice([1, 2, 4, 0, 2]) for _ in range(length)]
        if element.kind() == "OptionalType":
            element = element.getElementType()
        length = draws.choice([1, 2, 3, 2])
        return [self._value(element, name) for _ in range(length)]


def _call(op, args, kwargs):
    def action(device):
        placer = Placer(device)

        def place(leaf):
            return torch.device(device) if leaf is _DEVICE else leaf

        there = placer(tree_map(place, (args, kwargs)))
        return op(*there[0], **there[1]), there

    return action


def wrong(name, native, ours):
    """What may not be: values that are not native's, or none."""
    if ours.error is not None:
        if native.error is None and not name.startswith(REFUSED):
            return difference(native, ours)
        text = str(ours.error)
        for assertion in ("DispatchStub", "INTERNAL ASSERT FAILED"):
            if assertion in text and assertion not in str(native.error):
                return f"only chameleon raised {text[:300]}"
        return None
    if native.error is not None:  # where it is asked for a backend by name
        if isinstance(native.error, NotImplementedError):
            return None
        return None if name.startswith(REFUSED) else difference(native, ours)
    if name.startswith(VARY + REFUSED):
        return None
    found = difference(native, ours, not name.startswith(UNINITIALISED))
    # resize_output() counts a version for every device but the CPU.
    return None if found and ": version: " in found else found


def check(name, tries, note):
    """Differences of one op, each once; `note` keeps what is under way."""
    op = find(name)
    arguments, found = Arguments(hashed("composite", name)), {}
    for number in range(tries if op is not None else 0):
        try:
            args, kwargs = arguments.of(op._schema)
        except LookupError:
            break
        action = _call(op, args, kwargs)
        note(f"native {number}")
        native = observe(action, "cpu")
        note(f"chameleon {number}: {args} {kwargs}")
        text = wrong(name, native, observe(action, "chameleon"))
        if text is not None:
            found.setdefault(text[:40], f"{name} {number}: {text}")
    return list(found.values())


def check_in_fork(name, tries):
    """The same in a child. What natively ends the process is left out."""
    if name.startswith(PAST_THE_END):
        return []
    with tempfile.TemporaryFile("w+") as notes:
        child = os.fork()
        if child == 0:
            os.dup2(notes.fileno(), 2)
            signal.alarm(_SECONDS)  # a loop without end is a crash

            def note(text):
                notes.seek(0)
                notes.truncate()
                print(text[:2000], file=notes, flush=True)

            try:
                found = check(name, tries, note)
                note("\n".join(["done", *found]))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        notes.seek(0)
        text = notes.read()
    if text.startswith("done"):
        return text.splitlines()[1:]
    if text.startswith("native"):
        return []
    return [f"{name} ended the process: {text[:300]}"]


def main():
    part, parts = map(int, sys.argv[1].split("/"))
    tries = int(sys.argv[2])
    torch.set_num_threads(1)
    torch_chameleon.config.physical_device = "cpu"
    torch_chameleon.config.hbm_budget = "256MiB"
    count = 0
    for name in names():
        if hashed("composites", name) % parts == part - 1:
            count += 1
            for line in check_in_fork(name, tries):
                print(line, flush=True)
    print(count)


if __name__ == "__main__":
    main()
