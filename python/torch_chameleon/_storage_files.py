"""Storages in files: through the CPU.

torch reads and writes a storage's bytes in a file (`torch.save` in its old
format, pickle) at the storage's address, which is only logical here.
"""

from typing import Any

import torch


def install() -> None:
    """Replaces the two methods for chameleon storages; once a process."""
    write_file = torch.UntypedStorage._write_file
    set_from_file = torch.UntypedStorage._set_from_file

    def _write_file(storage: torch.UntypedStorage, *args: Any) -> Any:
        if storage.device.type == "chameleon":
            storage = storage.cpu()
        return write_file(storage, *args)

    def _set_from_file(storage: torch.UntypedStorage, *args: Any) -> Any:
        if storage.device.type != "chameleon":
            return set_from_file(storage, *args)
        read = torch.UntypedStorage(storage.nbytes())
        set_from_file(read, *args)
        storage.copy_(read)
        return storage

    torch.UntypedStorage._write_file = _write_file  # type: ignore[method-assign]
    torch.UntypedStorage._set_from_file = (  # type: ignore[method-assign]
        _set_from_file
    )
