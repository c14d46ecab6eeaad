"""Errors for the ways around the dispatcher.

A chameleon tensor's address is logical: nobody may read memory there. What
would hand it to other libraries raises one sentence instead, and
names `torch_chameleon.resident`, which gives native tensors.
`__cuda_array_interface__` already raises in torch.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.dlpack import DLDeviceType


def refusal(what: str) -> str:
    """The sentence about something that takes addresses.

    Args:
        what: What takes them.
    """
    return (
        f"{what} needs an address, but a chameleon tensor has no fixed place: "
        "use `with torch_chameleon.resident(tensor) as (native,)` and pass "
        "the native tensor, or copy it with `.cpu()`."
    )


def _guard_dlpack(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def guarded(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.device.type == "chameleon":
            # An export to the CPU is a copy, which is fine.
            target = kwargs.get("dl_device")
            if target is None or target[0] != DLDeviceType.kDLCPU:
                # BufferError is how __dlpack__ says that it cannot export.
                raise BufferError(refusal("DLPack"))
        return function(tensor, *args, **kwargs)

    return guarded


def _guard_numpy(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def guarded(tensor: torch.Tensor, *, force: bool = False) -> Any:
        if tensor.device.type == "chameleon" and not force:
            raise TypeError(refusal("NumPy"))
        return function(tensor, force=force)

    return guarded


def _name_device(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def named(tensor: torch.Tensor) -> Any:
        if tensor.device.type == "chameleon":
            return DLDeviceType.kDLExtDev, tensor.get_device()
        return function(tensor)

    return named


def install() -> None:
    """Puts the guards in place; once a process."""
    torch.Tensor.__dlpack__ = _guard_dlpack(  # type: ignore[method-assign]
        torch.Tensor.__dlpack__
    )
    # torch knows no name of the device here; __dlpack__ is to explain.
    torch.Tensor.__dlpack_device__ = _name_device(  # type: ignore[method-assign]
        torch.Tensor.__dlpack_device__
    )
    torch.Tensor.numpy = _guard_numpy(  # type: ignore[method-assign]
        torch.Tensor.numpy
    )
    for module in (torch, torch.utils.dlpack):
        name = "to_dlpack"
        setattr(module, name, _guard_dlpack(getattr(module, name)))
