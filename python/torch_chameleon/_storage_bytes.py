"""What torch does to a storage's bytes at its address: through the CPU.

Files (`torch.save` in its old format, pickle) are read and written there, and
bytes are swapped. Here the address is only logical.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

_Method = Callable[..., Any]


def _through_the_cpu_out(method: _Method) -> _Method:
    @functools.wraps(method)
    def write_file(storage: torch.UntypedStorage, *args: Any) -> Any:
        if storage.device.type == "chameleon":
            storage = storage.cpu()
        return method(storage, *args)

    return write_file


def _through_the_cpu_in(method: _Method) -> _Method:
    @functools.wraps(method)
    def set_from_file(storage: torch.UntypedStorage, *args: Any) -> Any:
        if storage.device.type != "chameleon":
            return method(storage, *args)
        read = torch.UntypedStorage(storage.nbytes())
        method(read, *args)
        return storage.copy_(read)

    return set_from_file


def _through_the_cpu_and_back(method: _Method) -> _Method:
    @functools.wraps(method)
    def in_place(storage: torch.UntypedStorage, *args: Any) -> Any:
        if storage.device.type != "chameleon":
            return method(storage, *args)
        copy = storage.cpu()
        method(copy, *args)
        storage.copy_(copy)
        return None

    return in_place


def install() -> None:
    """Replaces the methods for chameleon storages; once a process."""
    for name, through_the_cpu in (
        ("_byteswap", _through_the_cpu_and_back),
        ("_write_file", _through_the_cpu_out),
        ("_set_from_file", _through_the_cpu_in),
    ):
        method = getattr(torch.UntypedStorage, name)
        setattr(torch.UntypedStorage, name, through_the_cpu(method))
