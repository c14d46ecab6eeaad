"""What torch does to a storage's bytes at its address: through the CPU.

Files (`torch.save` in its old format, pickle) are read and written there, and
bytes are swapped. Here the address is only logical.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from torch_chameleon import _C
from torch_chameleon._patches.after_import import after_import
from torch_chameleon._replace_file import replace_file

_FIRST = 1  # before torch's own entries, which start at 10
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


def _loses_files() -> bool:
    return (
        bool(_C.first_use())
        and _C.physical_device() == "simulated"
        and "TORCH_CHAMELEON_OVERLAY" not in os.environ
    )


def refuse_without_bytes(what: str) -> None:
    """Keeps zeros from taking the place of a user's file.

    Under `plan` all files are kept away, and a script that saves goes on.

    Args:
        what: What would save.

    Raises:
        RuntimeError: The device is simulated.
    """
    if _loses_files():
        raise RuntimeError(
            f"{what}: a simulated device holds no bytes that could be saved; "
            'set torch_chameleon.config.physical_device to "cpu", or run the '
            "script under `python -m torch_chameleon plan`"
        )


def _tag(storage: Any) -> None:
    """Asked by `torch.save` for each storage; None: torch's own tag will do."""
    if storage.device.type == "chameleon":
        refuse_without_bytes("torch.save")


def _keep_the_old_file(save: _Method) -> _Method:
    """torch.save() empties the file before it asks for the first tag."""

    @functools.wraps(save)
    def guarded(obj: object, f: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(f, (str, os.PathLike)) or not _loses_files():
            return save(obj, f, *args, **kwargs)
        with replace_file(f) as temporary:
            return save(obj, temporary, *args, **kwargs)

    return guarded


def _is_ours(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "chameleon"


def _guard_tensors(function: _Method, what: str) -> _Method:
    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if _loses_files() and any(
            _is_ours(leaf) for leaf in tree_leaves((args, kwargs))
        ):
            refuse_without_bytes(what)
        return function(*args, **kwargs)

    return guarded


def _guard_safetensors(module: Any) -> None:
    for name in ("save", "save_file"):  # its other writers end in these
        method = _guard_tensors(vars(module)[name], f"safetensors' {name}")
        setattr(module, name, method)


def _guard_distributed_checkpoints(module: Any) -> None:
    planner = module.DefaultSavePlanner
    planner.set_up_planner = _guard_tensors(
        planner.set_up_planner, "torch.distributed.checkpoint"
    )


def _never_restored(storage: Any, location: str) -> None:
    return None


def install() -> None:
    """Replaces the methods for chameleon storages; once a process."""
    torch.serialization.register_package(_FIRST, _tag, _never_restored)
    save = _keep_the_old_file(torch.save)
    torch.save = torch.serialization.save = save
    after_import("safetensors.torch", _guard_safetensors)
    after_import(
        "torch.distributed.checkpoint.default_planner",
        _guard_distributed_checkpoints,
    )
    for name, through_the_cpu in (
        ("_byteswap", _through_the_cpu_and_back),
        ("_write_file", _through_the_cpu_out),
        ("_set_from_file", _through_the_cpu_in),
    ):
        method = getattr(torch.UntypedStorage, name)
        setattr(torch.UntypedStorage, name, through_the_cpu(method))
