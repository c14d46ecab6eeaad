"""nn.Module.to and its kin, where chameleon is the source or the target.

torch replaces a module's Parameter objects when tensors of the old and new
device have different implementations, which breaks ties and the references
that optimizers hold. Here every Parameter object stays and only its data
changes. A conversion is all-or-nothing: after an exception everything is where
it was. No second copy of the model exists at any time, except of what could
not be copied back (the dtype changed, or `to_empty` left the values behind).

Conversions in which no tensor is on chameleon, neither before nor after, go to
torch's code untouched. So do all where the program asked for torch's
`torch.__future__` conversion flags.

How: the public methods open a `_Conversion` for their thread, and the base
`Module._apply`, which all of them reach through any overrides, asks for it.
"""

import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import Parameter, is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from torch_chameleon import _C
from torch_chameleon._patches.origin import (
    Origin,
    SharedStorage,
    View,
    origin_of,
)

_Fn = Callable[[Tensor], Tensor]
_METHODS = (
    *("to", "to_empty", "cpu", "cuda", "chameleon"),
    *("type", "float", "double", "half", "bfloat16"),
)


class _Conversion:
    """One call of `Module.to` or its kin, on all modules that it reaches."""

    def __init__(self, module: Module, keep_views: bool) -> None:
        self._loses_values = False
        self._undo: list[Callable[[], None]] = []
        # Both by identity; the first holds its keys, the second watches them.
        self._parameters: dict[int, Tensor] = {}
        self._buffers: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}
        self._shared = _shared_storages(module) if keep_views else {}

    def apply(self, module: Module, fn: _Fn, recurse: bool) -> None:
        """Converts one module as `Module._apply` does."""
        if recurse:
            for child in module.children():
                child._apply(fn)
        with torch.no_grad():
            for parameter in module._parameters.values():
                if parameter is not None:
                    self._convert_parameter(parameter, fn)
            for key, buffer in module._buffers.items():
                if buffer is not None:
                    self._convert_buffer(module._buffers, key, buffer, fn)

    @contextmanager
    def part(self, loses_values: bool) -> Iterator[None]:
        """A call within this conversion: an exception undoes what it did."""
        mark, outer = len(self._undo), self._loses_values
        self._loses_values = outer or loses_values
        try:
            yield
        except BaseException as error:
            failed = self._undo_until(mark)
            if failed and hasattr(error, "add_note"):
                error.add_note(
                    f"torch_chameleon: {len(failed)} tensors could not be "
                    f"moved back: {failed[0]}"
                )
            raise
        finally:
            self._loses_values = outer

    def _undo_until(self, mark: int) -> list[Exception]:
        failed: list[Exception] = []
        # Uninitialized parameters refuse most functions at subclass level.
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            while len(self._undo) > mark:
                try:
                    self._undo.pop()()
                except Exception as error:  # the others must go back too
                    failed.append(error)
        return failed

    def _convert_parameter(self, parameter: Tensor, fn: _Fn) -> None:
        if id(parameter) in self._parameters:  # tied
            return
        self._parameters[id(parameter)] = parameter
        # The gradient stays the object that it is, and the parameter's.
        for tensor in (parameter, parameter.grad):
            if tensor is not None:
                self._convert_in_place(tensor, fn)

    def _convert_in_place(self, tensor: Tensor, fn: _Fn) -> None:
        converted, origin = self._converted(tensor, fn)
        if converted is tensor:
            return
        if _is_subclass_with_inner_tensors(converted):
            # As torch: its data is in attributes, so the objects swap roles.
            if isinstance(tensor, Parameter):
                converted = Parameter(converted, tensor.requires_grad)
            torch.utils.swap_tensors(tensor, converted)
            self._undo.append(
                lambda: torch.utils.swap_tensors(tensor, converted)
            )
            return
        _C.set_data(tensor, converted)
        self._undo.append(
            lambda: _C.set_data(tensor, origin.restore(tensor.detach()))
        )

    def _convert_buffer(
        self,
        buffers: dict[str, Tensor | None],
        key: str,
        buffer: Tensor,
        fn: _Fn,
    ) -> None:
        """Replaces the object, as torch does: others may hold a buffer."""
        converted, origin = self._converted_buffer(buffer, fn)
        if converted is buffer:
            return
        original = weakref.ref(buffer)

        def undo() -> None:
            unchanged = original()
            buffers[key] = (
                origin.restore(converted) if unchanged is None else unchanged
            )

        buffers[key] = converted
        self._undo.append(undo)

    def _converted_buffer(
        self, buffer: Tensor, fn: _Fn
    ) -> tuple[Tensor, Origin]:
        known = self._buffers.get(id(buffer))
        if known is not None and known[0]() is buffer:  # tied
            return known[1], origin_of(buffer, keep=True)
        converted, origin = self._converted(buffer, fn)
        for tensor in (buffer, converted):  # a shared module comes twice
            self._buffers[id(tensor)] = weakref.ref(tensor), converted
        return converted, origin

    def _converted(self, tensor: Tensor, fn: _Fn) -> tuple[Tensor, Origin]:
        """Returns fn(tensor), and what is needed to undo it."""
        shared = self._shared.get(_storage_key(tensor))
        if shared is not None and not self._loses_values:
            converted = _move_shared(shared, tensor, fn)
            if converted is not None:
                return converted, shared.origin_of(tensor)
        converted = fn(tensor)
        keep = self._loses_values or converted.dtype != tensor.dtype
        return converted, origin_of(tensor, keep)


def _move_shared(
    shared: SharedStorage, tensor: Tensor, fn: _Fn
) -> Tensor | None:
    """Moves a shared storage as a whole, once, and returns the new view.

    None when fn does more or less than a move to another device: then every
    tensor gets its own storage, as in torch.
    """
    probe = fn(torch.empty(0, dtype=tensor.dtype, device=tensor.device))
    if probe.dtype != tensor.dtype or probe.device == tensor.device:
        return None
    storage = shared.moved_storage()
    if storage is None:
        moved = fn(SharedStorage.bytes_of(tensor.untyped_storage()))
        shared.moved_to(moved)
        storage = moved.untyped_storage()
    return View(tensor).of(storage)


def _shared_storages(module: Module) -> dict[int, SharedStorage]:
    """Storages that several parameters, gradients or buffers look at."""
    first: dict[int, Tensor] = {}
    shared: dict[int, SharedStorage] = {}
    for tensor in _tensors(module):
        key = _storage_key(tensor)
        if key and first.setdefault(key, tensor) is not tensor:
            shared[key] = SharedStorage(tensor.untyped_storage())
    return shared


def _storage_key(tensor: Tensor) -> int:
    """Identifies the storage; 0 where there is none to look at."""
    if is_lazy(tensor) or tensor.layout != torch.strided:
        return 0
    if _is_subclass_with_inner_tensors(tensor):
        return 0
    return int(tensor.untyped_storage()._cdata)


def _is_subclass_with_inner_tensors(tensor: Tensor) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor) or is_traceable_wrapper_subclass(
        tensor
    )


def _tensors(module: Module) -> Iterator[Tensor]:
    for parameter in module.parameters():
        yield parameter
        if parameter.grad is not None:
            yield parameter.grad
    yield from module.buffers()


def _targets_chameleon(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    if name == "chameleon":
        return True
    try:
        if name == "to":
            device = torch._C._nn._parse_to(*args, **kwargs)[0]
        elif name == "to_empty":
            device = torch.device(kwargs["device"])
        else:
            return False
    except Exception:  # torch's own code will say what is wrong
        return False
    return device is not None and device.type == "chameleon"


def _involves_chameleon(
    module: Module, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    if (
        torch.__future__.get_swap_module_params_on_conversion()
        or torch.__future__.get_overwrite_module_params_on_conversion()
    ):
        return False
    if _targets_chameleon(name, args, kwargs):
        return True
    if _C.first_use() is None:  # so there is no chameleon tensor
        return False
    return any(
        tensor.device.type == "chameleon"
        for tensor in itertools.chain(module.parameters(), module.buffers())
    )


class _Thread(threading.local):
    conversion: _Conversion | None = None


_thread = _Thread()


def _wrap(name: str, method: Callable[..., Module]) -> Callable[..., Module]:
    @functools.wraps(method)
    def convert(self: Module, *args: Any, **kwargs: Any) -> Module:
        if not _involves_chameleon(self, name, args, kwargs):
            return method(self, *args, **kwargs)
        outer = _thread.conversion
        keep_views = kwargs.get("memory_format") is None
        conversion = outer or _Conversion(self, keep_views)
        _thread.conversion = conversion
        try:
            with conversion.part(loses_values=name == "to_empty"):
                return method(self, *args, **kwargs)
        finally:
            _thread.conversion = outer

    return convert


def _wrap_apply(apply: Callable[..., Module]) -> Callable[..., Module]:
    @functools.wraps(apply)
    def _apply(self: Module, fn: _Fn, recurse: bool = True) -> Module:
        conversion = _thread.conversion
        if conversion is None:
            return apply(self, fn, recurse)
        conversion.apply(self, fn, recurse)
        return self

    return _apply


def install() -> None:
    """Wraps the methods of nn.Module; once a process."""
    for name in _METHODS:
        setattr(Module, name, _wrap(name, getattr(Module, name)))
    Module._apply = _wrap_apply(Module._apply)  # type: ignore[method-assign]
