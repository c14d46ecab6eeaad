"""Custom ops that are registered after the package was imported.

The dispatcher tells the extension of new schemas, and nobody of new kernels.
So it is asked to look whenever torch's own ways to add some have been used.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef

from torch_chameleon import _C

_Method = Callable[..., Any]


def _look_at_the_op(impl: _Method) -> _Method:
    @functools.wraps(impl)
    def looked(
        library: torch.library.Library,
        op_name: str | torch._ops.OpOverload,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        impl(library, op_name, *args, **kwargs)
        name = op_name if isinstance(op_name, str) else op_name.name()
        _C.redirect_new_kernel(f"{library.ns}::{name.split('::')[-1]}")

    return looked


def _look_at_all(load_library: _Method) -> _Method:
    @functools.wraps(load_library)
    def looked(*args: Any, **kwargs: Any) -> None:
        load_library(*args, **kwargs)
        _C.redirect_new_kernels()

    return looked


def _register_backend_select(self: CustomOpDef, device_arg_index: int) -> None:
    """Takes the place of CustomOpDef's method, for ops without tensor inputs.

    They choose their kernel by the device argument, and torch's method looks
    for one that was registered under that very name.
    """

    def backend_select(_: object, *args: Any, **kwargs: Any) -> Any:
        device = args[device_arg_index].type
        if device != "chameleon" and device not in self._backend_fns:
            raise RuntimeError(
                f"{self._name} does not have a kernel registered for {device}. "
                "Please use register_kernel to do so."
            )
        key = getattr(
            torch._C.DispatchKey, torch._C._dispatch_key_for_device(device)
        )
        return self._opoverload.redispatch(
            torch._C.DispatchKeySet(key), *args, **kwargs
        )

    self._lib.impl(
        self._name, backend_select, "BackendSelect", with_keyset=True
    )


def install() -> None:
    """Puts the hooks in place; once a process."""
    library = torch.library.Library
    library.impl = _look_at_the_op(library.impl)  # type: ignore[method-assign]
    ops = type(torch.ops)
    ops.load_library = _look_at_all(ops.load_library)  # type: ignore[method-assign]
    CustomOpDef._register_backend_select_dispatcher = (  # type: ignore[method-assign]
        _register_backend_select
    )
