"""Random numbers of tensors that are sharded over ranks (DTensor).

Torch gives each rank its part of one sequence by moving the offset in the state
of CUDA's generator. Where the device's generator is the CPU's there is no
offset, and each rank draws by itself, as it does with a mesh of CPUs.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from torch_chameleon import chameleon
from torch_chameleon._patches.after_import import after_import

_PHILOX_BYTES = 16  # seed and offset
_ASKED = "is_rng_supported_mesh"
_Asked = Callable[[Any], bool]


def _needs_offset(supported: _Asked) -> _Asked:
    @functools.wraps(supported)
    def asked(mesh: Any) -> bool:
        ours = torch.device(mesh.device_type) == torch.device("chameleon")
        if not ours or chameleon.get_rng_state().numel() == _PHILOX_BYTES:
            return supported(mesh)
        warnings.warn(
            "DTensor random operators may not have complete support on "
            f"{mesh.device_type} device mesh",
            stacklevel=2,
        )
        return False

    return asked


def _change(module: Any) -> None:
    supported = getattr(module, _ASKED)
    if not hasattr(supported, "__wrapped__"):
        setattr(module, _ASKED, _needs_offset(supported))


def install() -> None:
    """Once a process."""
    for name in ("_random", "_dispatch"):
        after_import(f"torch.distributed.tensor.{name}", _change)
