"""Lets a script that says "cuda" (or nothing) run on chameleon, as it is.

For `plan` alone: it runs scripts whose author never heard of this device, in a
process that ends with them. While it is on, "cuda" in a call means chameleon,
`torch.cuda` answers for it, and large floating-point tensors that a script
makes without values (weights before they are moved) are made on it at once,
since a simulated device keeps no bytes.

What it cannot hide: `tensor.device.type` is "chameleon".
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from torch_chameleon import chameleon

_LARGE_BYTES = 1 << 20  # smaller ones stay what they are: scripts read them
_FACTORIES = frozenset(
    getattr(torch, name)
    for name in (
        *("empty", "zeros", "ones", "full", "rand", "randn", "normal"),
        *("empty_strided",),
    )
)
_IS_CUDA = Tensor.is_cuda.__get__  # type: ignore[attr-defined]
_WITH_DEVICES: tuple[tuple[Any, str], ...] = (
    (torch.amp.autocast_mode.autocast, "__init__"),
    (torch.amp.grad_scaler.GradScaler, "__init__"),
    (nn.Module, "to"),
    (nn.Module, "to_empty"),
    (torch, "load"),
    (torch, "set_default_device"),
)


def _mapped(value: Any) -> Any:
    """The value with chameleon in place of cuda, where it is a device."""
    if isinstance(value, torch.device):
        if value.type != "cuda":
            return value
        return torch.device("chameleon", value.index or 0)
    if isinstance(value, str) and (
        value == "cuda" or value.startswith("cuda:")
    ):
        return value.replace("cuda", "chameleon", 1)
    return value


def _mapped_call(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (
        tuple(map(_mapped, args)),
        {key: _mapped(value) for key, value in kwargs.items()},
    )


class _CudaAlias(TorchFunctionMode):
    """Every call of torch, with devices exchanged."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func == _IS_CUDA:
            return args[0].device.type == "chameleon"
        args, kwargs = _mapped_call(args, kwargs or {})
        if func is Tensor.pin_memory:
            return args[0]
        if func is Tensor.cuda:
            return args[0].to("chameleon", **kwargs)
        if func in _FACTORIES and kwargs.get("device") is None:
            return _made(func, args, kwargs)
        return func(*args, **kwargs)


def _made(
    func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """What a factory makes; on chameleon if it is large and floating.

    Random ones take no generator then: there are no values to draw.
    """
    values = {key: kwargs[key] for key in kwargs if key != "generator"}
    with torch.device("meta"):
        shape = func(*args, **values)
    is_large = shape.is_floating_point() and shape.nbytes >= _LARGE_BYTES
    if not is_large or "out" in kwargs:
        return func(*args, **kwargs)
    return func(*args, **{**values, "device": "chameleon"})


def _wrap(owner: Any, name: str) -> None:
    """Exchanges devices among the arguments of a function."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _mapped_call(args, kwargs)
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


def _load_in_process(init: Callable[..., None]) -> Callable[..., None]:
    """DataLoader.__init__ without workers or pinning.

    A forked worker must not touch the device, on which a script's made-up data
    may be.
    """

    @functools.wraps(init)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in ("prefetch_factor", "persistent_workers"):
            kwargs.pop(name, None)
        init(self, *args, **{**kwargs, "num_workers": 0, "pin_memory": False})

    return wrapped


def _module_cuda(module: nn.Module, device: Any = None) -> nn.Module:
    return module.to("chameleon")


def install() -> None:
    """Turns it on, for the rest of the process."""
    for owner, name in _WITH_DEVICES:
        _wrap(owner, name)
    loader: Any = torch.utils.data.DataLoader
    loader.__init__ = _load_in_process(loader.__init__)
    nn.Module.cuda = _module_cuda  # type: ignore[method-assign,assignment]
    for name in dir(chameleon):
        if not name.startswith("_") and hasattr(torch.cuda, name):
            value = getattr(chameleon, name)
            if callable(value):
                setattr(torch.cuda, name, value)
    torch.cuda._lazy_init = lambda: None
    torch.cuda.is_available = lambda: True
    torch.cuda.is_current_stream_capturing = lambda: False
    _CudaAlias().__enter__()  # type: ignore[no-untyped-call]
