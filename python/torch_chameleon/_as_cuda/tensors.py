"""Tensors, storages and modules: `cuda()`, `is_cuda`, `type()`, old types."""

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.storage import TypedStorage, UntypedStorage

from torch_chameleon import _C
from torch_chameleon._as_cuda.cuda_module import replace
from torch_chameleon._as_cuda.names import ours_for

_PREFIX, _OUR_PREFIX = "torch.cuda.", "torch.chameleon."
_KINDS = (
    *("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int"),
    *("Long", "Short"),
)


class _OldType(type):
    """The type of `torch.cuda.FloatTensor` and its kin: makes tensors."""

    on_host: Any  # torch.FloatTensor
    dtype: torch.dtype

    def __call__(cls, *args: Any, **kwargs: Any) -> Tensor:
        if len(args) == 1 and isinstance(args[0], cls):
            alias: Tensor = args[0].detach()
            return alias
        # torch makes them on the CPU only, but understands what is asked for.
        made: Tensor = cls.on_host(*args, **kwargs)
        return made.to("chameleon")

    def __instancecheck__(cls, instance: Any) -> bool:
        return (
            isinstance(instance, Tensor)
            and instance.device.type == "chameleon"
            and instance.dtype == cls.dtype
        )


def _old_type(kind: str) -> _OldType:
    on_host = getattr(torch, f"{kind}Tensor")
    members = {
        "on_host": on_host,
        "dtype": on_host.dtype,
        "__module__": "torch.cuda",
    }
    return _OldType(f"{kind}Tensor", (), members)


def _cuda(tensor: Any, device: Any = None, *args: Any, **kwargs: Any) -> Tensor:
    moved: Tensor = tensor.chameleon(ours_for(device), *args, **kwargs)
    return moved


def _module_cuda(module: Any, device: Any = None) -> nn.Module:
    moved: nn.Module = module.chameleon(ours_for(device))
    return moved


def _replace_is_cuda(owner: type) -> None:
    def is_cuda(tensor: Any) -> bool:
        return tensor.device.type in ("chameleon", "cuda")

    owner.is_cuda = property(is_cuda)  # type: ignore[attr-defined]


def _replace_type() -> None:
    original = Tensor.type

    @functools.wraps(original)
    def type_(
        tensor: Tensor, dtype: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if isinstance(dtype, _OldType):
            dtype = f"{_PREFIX}{dtype.__name__}"
        if isinstance(dtype, str):
            dtype = dtype.replace(_PREFIX, _OUR_PREFIX)
        found: Any = original(tensor, dtype, *args, **kwargs)
        if isinstance(found, str):
            return found.replace(_OUR_PREFIX, _PREFIX)
        return found

    Tensor.type = type_  # type: ignore[method-assign,assignment]


def _construct(
    kind: type[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any] | None
) -> Tensor:
    """What `torch.Tensor(...)` gives under a default type of CUDA."""
    given = kwargs or {}
    device = given.get("device")
    if device is not None and torch.device(ours_for(device)).type == "cpu":
        raise RuntimeError(
            "legacy constructor expects device type: cuda but device type: "
            "cpu was passed"
        )
    rest = {name: given[name] for name in given if name != "device"}
    with torch._C.DisableTorchFunctionSubclass():
        made = _constructed(args, rest)
        if kind is not Tensor:
            made = made.as_subclass(kind)
    kind.__init__(made, *args, **given)
    return made


def _constructed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    first = next(iter([*args, *kwargs.values()]), None)
    if isinstance(first, Tensor):  # a view of it
        return Tensor.__new__(Tensor, *args, **kwargs)
    if isinstance(first, (TypedStorage, UntypedStorage)):
        return torch.empty(0, device=first.device).set_(first)
    if args and all(isinstance(each, int) for each in args):
        return torch.empty(args, device="chameleon")
    return Tensor.__new__(Tensor, *args, **kwargs).to("chameleon")


def _replace_default_type() -> None:
    original = torch.set_default_tensor_type

    @functools.wraps(original)
    def set_default_tensor_type(t: Any) -> None:
        name = f"{_PREFIX}{t.__name__}" if isinstance(t, _OldType) else t
        is_ours = isinstance(name, str) and name.startswith(_PREFIX)
        original(name.replace(_PREFIX, "torch.") if is_ours else t)
        _C.place_by_default(is_ours)

    torch.set_default_tensor_type = set_default_tensor_type
    _C.construct_by(_construct)


def install() -> None:
    """Turns it on, for the rest of the process."""
    Tensor.cuda = _cuda  # type: ignore[method-assign,assignment]
    nn.Module.cuda = _module_cuda  # type: ignore[method-assign,assignment]
    for owner in (Tensor, TypedStorage, UntypedStorage):
        _replace_is_cuda(owner)
    _replace_type()
    _replace_default_type()
    for kind in _KINDS:
        replace(f"{kind}Tensor", _old_type(kind))
