"""What runs for a piece of Python, seen at two levels.

`ops_of` sees what reaches a device below autograd, through a
TorchDispatchMode: composites that branch on the device show here. `kernels_of`
sees every call through the dispatcher, those that native kernels make among
themselves included, and every node of autograd, through the profiler's
RecordFunction events: what the redirect runs on alias tensors shows here.

The tables are all that a chameleon run may show differently, each row with its
reason.
"""

import torch
from torch.profiler import record_function
from torch.utils._python_dispatch import TorchDispatchMode

# What reaches the device below autograd: chameleon's name -> native's. The
# order of such ops' arguments differs, so that only their tensors are compared.
RENAMED_OPS = {
    # SDPA's composite calls a backend of another device than CPU, CUDA, XPU or
    # MPS by this name only; inside it is flash attention.
    "aten._scaled_dot_product_fused_attention_overrideable.default": (
        "aten._scaled_dot_product_flash_attention_for_cpu.default"
    ),
    "aten._scaled_dot_product_fused_attention_overrideable_backward.default": (
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"
    ),
}

_COPY = ("aten::copy_", "aten::_copy_from")
_STAGED = ("aten::empty_strided", "aten::copy_")
_REST = ("aten::_to_copy", "aten::empty_strided", *_COPY)
_TO = ("aten::to", *_REST)
_TO_LAYOUT = ("aten::to.dtype_layout", *_REST)
_FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
_FUSED = "aten::_scaled_dot_product_fused_attention_overrideable"

# Chameleon's sequence -> which of it native has. The longest that fits counts.
RENAMED_KERNELS = {
    # copy_ hands over to _copy_from on every device that is not in core; what
    # the redirect then runs is native's copy_, except where nothing is to copy
    # or the bytes go between the CPU and the block.
    _COPY: [0],
    (*_COPY, "aten::copy_"): [0],
    (*_COPY, "aten::expand", "aten::as_strided", "aten::copy_"): [0],
    (*_COPY, *_STAGED): [0],
    (*_TO, "aten::copy_"): [0, 1, 2, 3],
    (*_TO, *_STAGED): [0, 1, 2, 3],
    (*_TO_LAYOUT, "aten::copy_"): [0, 1, 2, 3],
    (*_TO_LAYOUT, *_STAGED): [0, 1, 2, 3],
    # A tensor that was made on the CPU moves to the device; natively it is
    # there already. at::tensor() makes its own of a list of numbers.
    _TO: [0],
    _TO_LAYOUT: [],
    # The value is read through a tensor on the CPU.
    (
        "aten::_local_scalar_dense",
        "aten::empty",
        "aten::item",
        "aten::_local_scalar_dense",
    ): [0],
    # Native fills a scalar on the CPU without the dispatcher.
    ("aten::scalar_tensor", "aten::empty", "aten::fill_"): [0],
    # CUDA has integer kernels that the CPU lacks
    # (kernels/composites/cuda_dtypes.cpp).
    ("aten::histc", "chameleon::histc", "aten::histc"): [0],
    # See RENAMED_OPS.
    (_FUSED, _FLASH): [1],
    (f"{_FUSED}_backward", f"{_FLASH}_backward"): [1],
}

# Nodes of autograd, likewise.
RENAMED_NODES = {
    "ScaledDotProductFusedAttentionOverrideableBackward0": (
        "ScaledDotProductFlashAttentionForCpuBackward0"
    ),
}

# What native calls through the dispatcher, and chameleon need not: a question,
# and the name under which the CPU composes RMSNorm.
NATIVE_ONLY = {"aten::cudnn_is_acceptable", "aten::_fused_rms_norm"}

_PLACES = ("cpu", "chameleon")  # taken for the same place
_USER_SCOPE = 7  # at::RecordScope::USER_SCOPE, which record_function() has too


def _described(value):
    if isinstance(value, torch.Tensor):
        layout = value.layout
        return (
            str(value.dtype).removeprefix("torch."),
            tuple(value.shape),
            value.stride() if layout is torch.strided else str(layout),
            _described(value.device),
        )
    if isinstance(value, (list, tuple)):
        return tuple(map(_described, value))
    if isinstance(value, torch.device):
        return "here" if value.type in _PLACES else str(value)
    if isinstance(value, torch.Generator):
        return "generator"
    return repr(value)


class _Ops(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not _is_transfer(func, args, kwargs):
            self.calls.append(_described_call(str(func), args, kwargs))
        return func(*args, **kwargs)


def _is_transfer(func, args, kwargs):
    """A tensor that was made on the CPU; natively it is there already."""
    return (
        func is torch.ops.aten._to_copy.default
        and args[0].device.type == "cpu"
        and kwargs.get("device", args[0].device).type == "chameleon"
        and kwargs.get("dtype", args[0].dtype) == args[0].dtype
    )


def _described_call(name, args, kwargs):
    native = RENAMED_OPS.get(name, name)
    if native in RENAMED_OPS.values():
        given = [*args, *kwargs.values()]
        tensors = [_described(x) for x in given if torch.is_tensor(x)]
        return (native, *sorted(tensors))
    call = (name, *map(_described, args))
    return (*call, *map(_described, sorted(kwargs.items())))


def ops_of(run):
    """Returns (what `run` calls below autograd, what it raises or None)."""
    recorder = _Ops()
    with recorder:
        error = _error_of(run)
    return recorder.calls, error


def _error_of(run):
    try:
        run()
    except Exception as error:
        return error
    return None


def kernels_of(runs):
    """Returns a list of ((name, shapes, dtypes) of each call, error).

    Args:
        runs: Pairs of a function that makes ready and returns the function
            that is to be recorded.
    """
    errors = []
    with torch.autograd.profiler.profile(record_shapes=True) as profile:
        for prepare in runs:
            run = prepare()
            with record_function("@begin"):
                pass
            errors.append(_error_of(run))
            with record_function("@end"):
                pass
    recorded, inside = [], None
    for event in profile.kineto_results.events():
        if event.name() == "@begin":
            inside = []
            recorded.append(inside)
        elif event.name() == "@end":
            inside = None
        elif (
            inside is not None
            and event.name() not in NATIVE_ONLY
            and not event.name().startswith("[")
            and not _is_phase(event)
        ):
            inside.append((event.name(), event.shapes(), event.dtypes()))
    return list(zip(recorded, errors, strict=True))


def _is_phase(event):
    """Whether it is the pager's work, in the middle of ops."""
    return event.name().startswith("chameleon::") and (
        event.scope() == _USER_SCOPE
    )


def renamed(calls):
    """A chameleon run's calls as native would have them."""
    names = [_told_apart(name, shapes) for name, shapes, _ in calls]
    result, at = [], 0
    while at < len(calls):
        kept, length = _row_at(names, calls, at)
        result += [calls[at + i] for i in kept]
        at += length
    return [(_node(name), shapes, dtypes) for name, shapes, dtypes in result]


def _told_apart(name, shapes):
    is_layout = name == "aten::to" and len(shapes) == 8
    return f"{name}.dtype_layout" if is_layout else name


def _row_at(names, calls, at):
    for ours, kept in _LONGEST_FIRST:
        if tuple(names[at : at + len(ours)]) != ours:
            continue
        if ours[1:] == _REST and _is_empty_cast(*calls[at + 3]):
            continue
        return kept, len(ours)
    return [0], 1


def _is_empty_cast(_, shapes, dtypes):
    """Nothing is copied, within the device; no move changes the dtype."""
    return 0 in shapes[0] and dtypes[0] != dtypes[1]


def _node(name):
    for ours, native in RENAMED_NODES.items():
        name = name.replace(ours, native)
    return name


_LONGEST_FIRST = sorted(RENAMED_KERNELS.items(), key=lambda row: -len(row[0]))
