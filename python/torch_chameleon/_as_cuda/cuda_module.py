"""`torch.cuda` answers for the device.

torch's own module stays whole, since its functions call each other and the
package asks them about the GPU: programs get another module of that name,
which has what `torch.chameleon` has, and all else from torch's.
"""

import sys
import threading
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch

from torch_chameleon import chameleon
from torch_chameleon.chameleon import _utils, memory, random, streams

_NAME = "torch.cuda"
_PUBLIC = frozenset(chameleon.__all__) - {"Event"}
_PRIVATE = (
    *("_record_memory_history", "_snapshot", "_dump_snapshot"),
    "_is_in_bad_fork",
)


class _EventType(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.Event)


class Event(metaclass=_EventType):
    """`torch.cuda.Event`: a torch.Event, whose arguments have another order."""

    def __new__(  # type: ignore[misc]
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
    ) -> torch.Event:
        """Makes an event of the device."""
        return torch.Event(
            "chameleon",
            enable_timing=enable_timing,
            blocking=blocking,
            interprocess=interprocess,
        )


class _Cuda(ModuleType):
    """The module that programs get."""

    def __init__(self, theirs: ModuleType) -> None:
        super().__init__(_NAME, theirs.__doc__)
        for name in ("__file__", "__path__", "__package__", "__spec__"):
            self.__dict__[name] = getattr(theirs, name)
        self.__dict__["_theirs"] = theirs

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.__dict__["_theirs"], name)
        if name == "default_generators" and not found:
            return chameleon.default_generators
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        # What is not ours is for torch's functions to see.
        if name in self.__dict__:
            super().__setattr__(name, value)
        else:
            setattr(self.__dict__["_theirs"], name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *dir(self.__dict__["_theirs"])})


def _let_it_start(theirs: Any, ours: _Cuda) -> None:
    """C++ code of torch finds the module by its name when CUDA starts."""
    original = theirs._lazy_init
    lock = threading.RLock()

    def lazy_init() -> None:
        if theirs.is_initialized():
            return
        with lock:
            sys.modules[_NAME] = theirs
            try:
                original()
            finally:
                sys.modules[_NAME] = ours

    theirs._lazy_init = lazy_init


def _put(theirs: Any, ours: Any, names: Iterable[str]) -> None:
    for name in names:
        if hasattr(theirs, name) and hasattr(ours, name):
            theirs.__dict__[name] = getattr(ours, name)


def replace(name: str, value: object) -> None:
    """Puts something of ours in the place of something of torch.cuda's.

    Args:
        name: What it is called there.
        value: What programs get.
    """
    torch.cuda.__dict__[name] = value


def install() -> None:
    """Turns it on, for the rest of the process."""
    _utils.names.add("cuda")
    theirs: Any = torch.cuda
    cuda = _Cuda(theirs)
    _let_it_start(theirs, cuda)
    sys.modules[_NAME] = cuda
    torch.cuda = cuda
    for module, ours in (
        (cuda, chameleon),
        (theirs.memory, memory),
        (theirs.random, random),
        (theirs.streams, streams),
    ):
        _put(module, ours, (*_PUBLIC, *_PRIVATE))
    replace("Event", Event)
    theirs.streams.Event = Event
    torch.backends.cuda.is_built = lambda: True
