"""What need not be done under `plan`, where no tensor has values.

Large weights that modules make on the CPU, before they are moved, are made on
the simulated device at once, which keeps no bytes. Other tensors stay where the
script makes them: a data set on the CPU is no device memory. Batches are loaded
in its process and are not pinned, and no distribution checks its arguments.
"""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_LARGE_BYTES = 1 << 20  # smaller ones stay what they are: scripts read them
_made_weights = False  # on the device, unasked
_moved = False  # a module, by the script
_FACTORIES = (
    *("empty", "zeros", "ones", "full", "rand", "randn", "normal"),
    *("empty_strided",),
)


class _OnTheDevice(TorchFunctionMode):
    """Large weights are on it from the start."""

    def __init__(self) -> None:
        super().__init__()
        # Their hashes are others since "cuda" means chameleon.
        self._factories = frozenset(getattr(torch, name) for name in _FACTORIES)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in self._factories and kwargs.get("device") is None:
            return _made(func, args, kwargs)
        return func(*args, **kwargs)


def _made(
    func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """What a factory makes; on chameleon if it is large and floating.

    Random ones take no generator then: there are no values to draw.
    """
    values = {key: kwargs[key] for key in kwargs if key != "generator"}
    with torch.device("meta"):
        shape = func(*args, **values)
    is_large = shape.is_floating_point() and shape.nbytes >= _LARGE_BYTES
    if not is_large or "out" in kwargs or not _for_a_module():
        return func(*args, **kwargs)
    global _made_weights
    _made_weights = True
    return func(*args, **{**values, "device": "chameleon"})


def _for_a_module() -> bool:
    """Whether a module's constructor is on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__init__" and code.co_argcount:
            made = frame.f_locals.get(code.co_varnames[0])
            if isinstance(made, nn.Module):
                return True
        frame = frame.f_back
    return False


def unasked() -> bool:
    """Whether weights are on the device though the script moved no module."""
    return _made_weights and not _moved


def _noting(move: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(move)
    def wrapped(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        global _moved
        _moved = True
        return move(self, *args, **kwargs)

    return wrapped


def _load_in_process(init: Callable[..., None]) -> Callable[..., None]:
    """DataLoader.__init__ without workers or pinning.

    A forked worker must not touch the device, on which what a data set holds
    may be.
    """

    @functools.wraps(init)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in ("prefetch_factor", "persistent_workers"):
            kwargs.pop(name, None)
        init(self, *args, **{**kwargs, "num_workers": 0, "pin_memory": False})

    return wrapped


def _pin_memory(tensor: Tensor, device: Any = None) -> Tensor:
    return tensor


def install() -> None:
    """Turns it on, for the rest of the process."""
    loader: Any = torch.utils.data.DataLoader
    loader.__init__ = _load_in_process(loader.__init__)
    Tensor.pin_memory = _pin_memory  # type: ignore[method-assign,assignment]
    for name in ("to", "cuda"):
        setattr(nn.Module, name, _noting(getattr(nn.Module, name)))
    torch.distributions.Distribution.set_default_validate_args(False)
    _OnTheDevice().__enter__()  # type: ignore[no-untyped-call]
