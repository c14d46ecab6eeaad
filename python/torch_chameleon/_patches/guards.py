"""Errors for the ways around the dispatcher.

A chameleon tensor's address is logical: nobody may read memory there. What
would hand it to other libraries raises one sentence instead, and
names `torch_chameleon.resident`, which gives native tensors. An address that
`data_ptr()` gave is a number, and what becomes of it nobody sees.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.dlpack import DLDeviceType

from torch_chameleon._patches.after_import import after_import


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


def has_ours(values: Iterable[Any]) -> bool:
    """Whether a chameleon tensor is among them.

    Args:
        values: Arguments of a call, whose lists are looked into.
    """
    return any(
        value.device.type == "chameleon"
        if isinstance(value, torch.Tensor)
        else isinstance(value, (list, tuple)) and has_ours(value)
        for value in values
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


def _guard_cuda_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """CuPy, Numba and RAPIDS read the property of tensors that have it."""

    @functools.wraps(function)
    def guarded(tensor: torch.Tensor) -> Any:
        if tensor.device.type == "chameleon":
            # hasattr() is to be false, as torch has it for tensors on the CPU.
            raise AttributeError(refusal("__cuda_array_interface__"))
        return function(tensor)

    return guarded


def _guard_launches(
    function: Callable[..., Any], what: str
) -> Callable[..., Any]:
    """Their own check is whether a tensor is on the CPU."""

    @functools.wraps(function)
    def guarded(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        # To warm up is to compile: no address is used.
        if not kwargs.get("warmup") and has_ours((*args, *kwargs.values())):
            raise ValueError(refusal(what))
        return function(kernel, *args, **kwargs)

    return guarded


def _guard_triton(module: Any) -> None:
    kernel = module.JITFunction
    kernel.run = _guard_launches(kernel.run, "A Triton kernel")


def _guard_bitsandbytes(module: Any) -> None:
    """Its ops are torch.library's and get native tensors; the rest calls C."""
    address_of = module.get_ptr

    @functools.wraps(address_of)
    def get_ptr(A: Any) -> Any:  # noqa: N803 (its name for it)
        if has_ours((A,)):
            raise ValueError(refusal("A function of bitsandbytes"))
        return address_of(A)

    module.get_ptr = get_ptr


def _guard_compiled_kernels(module: Any) -> None:
    """What `torch.cuda._compile_kernel` made."""
    kernel = getattr(module, "_CudaKernel", None)
    if kernel is not None:
        kernel.__call__ = _guard_launches(kernel.__call__, "A CUDA kernel")


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
    interface: Any = torch.Tensor.__cuda_array_interface__
    torch.Tensor.__cuda_array_interface__ = property(  # type: ignore[method-assign,assignment]
        _guard_cuda_arrays(interface.fget)
    )
    after_import("triton.runtime.jit", _guard_triton)
    after_import("bitsandbytes.functional", _guard_bitsandbytes)
    after_import("torch.cuda._utils", _guard_compiled_kernels)
    for module in (torch, torch.utils.dlpack):
        name = "to_dlpack"
        setattr(module, name, _guard_dlpack(getattr(module, name)))
