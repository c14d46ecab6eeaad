"""What a script need not do under `plan`, where no tensor has values.

Large floating-point tensors that it makes on the CPU without values (weights
before they are moved) are made on the simulated device at once, which keeps no
bytes. Batches are loaded in its process and are not pinned.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_LARGE_BYTES = 1 << 20  # smaller ones stay what they are: scripts read them
_FACTORIES = (
    *("empty", "zeros", "ones", "full", "rand", "randn", "normal"),
    *("empty_strided",),
)


class _OnTheDevice(TorchFunctionMode):
    """Large tensors without values are on it from the start."""

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
    if not is_large or "out" in kwargs:
        return func(*args, **kwargs)
    return func(*args, **{**values, "device": "chameleon"})


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


def _pin_memory(tensor: Tensor, device: Any = None) -> Tensor:
    return tensor


def install() -> None:
    """Turns it on, for the rest of the process."""
    loader: Any = torch.utils.data.DataLoader
    loader.__init__ = _load_in_process(loader.__init__)
    Tensor.pin_memory = _pin_memory  # type: ignore[method-assign,assignment]
    _OnTheDevice().__enter__()  # type: ignore[no-untyped-call]
