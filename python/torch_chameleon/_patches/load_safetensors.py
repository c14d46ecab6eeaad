"""safetensors' files, read to the device.

safetensors has a list of devices and refuses others. Here it reads to the host,
which maps the file, and each tensor moves on by itself, so that host memory
never holds the file. `safetensors.torch.load_file` and what other libraries
load with it come this way too.
"""

import functools
import sys
from typing import Any

import torch

from torch_chameleon._patches.after_import import after_import


class _Slice:
    """What `get_slice` returns: a part is moved once it is asked for."""

    def __init__(self, native: Any, device: torch.device) -> None:
        self._native = native
        self._device = device

    def __getitem__(self, index: Any) -> torch.Tensor:
        part: torch.Tensor = self._native[index]
        return part.to(self._device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)


class _OpenFile:
    """A file that is open on the CPU, whose tensors are on the device."""

    def __init__(self, native: Any, device: torch.device) -> None:
        self._native = native
        self._device = device

    def __enter__(self) -> "_OpenFile":
        self._native.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._native.__exit__(*error)

    def get_tensor(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._native.get_tensor(name)
        return tensor.to(self._device)

    def get_tensors(self) -> dict[str, torch.Tensor]:
        return {name: self.get_tensor(name) for name in self.keys()}

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._native.get_slice(name), self._device)

    def keys(self) -> list[str]:
        names: list[str] = self._native.keys()
        return names

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)


def _is_ours(device: Any) -> bool:
    kind = device.type if isinstance(device, torch.device) else device
    return isinstance(kind, str) and kind.split(":")[0] == "chameleon"


def _extend(module: Any) -> None:
    native = module.safe_open

    @functools.wraps(native, updated=())
    def safe_open(
        filename: Any, framework: Any, device: Any = "cpu", **options: Any
    ) -> Any:
        if not _is_ours(device):
            return native(filename, framework, device, **options)
        opened = native(filename, framework, "cpu", **options)
        return _OpenFile(opened, torch.device(device))

    # Who imported it earlier has it by name.
    for other in list(sys.modules.values()):
        if getattr(other, "__dict__", {}).get("safe_open") is native:
            vars(other)["safe_open"] = safe_open


def install() -> None:
    """Lets the device in, now or when safetensors is imported."""
    after_import("safetensors", _extend)
