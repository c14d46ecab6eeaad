"""Mixed precision: what goes by the device's name beside `calls`.

`torch.autocast("cuda")`, `torch.amp.GradScaler("cuda")` and `torch.cuda.amp`
are torch's own and need nothing.
"""

import functools
from typing import Any

import torch
from torch.amp import autocast_mode

from torch_chameleon._as_cuda.names import ours_for


def _replace_cast() -> None:
    """What `custom_fwd(device_type="cuda")` casts."""
    original: Any = autocast_mode._cast

    @functools.wraps(original)
    def cast(value: Any, device_type: str, dtype: Any) -> Any:
        return original(value, ours_for(device_type), dtype)

    autocast_mode._cast = cast


def _get_autocast_gpu_dtype() -> torch.dtype:
    return torch.get_autocast_dtype("chameleon")


def _set_autocast_gpu_dtype(dtype: torch.dtype) -> None:
    torch.set_autocast_dtype("chameleon", dtype)


def install() -> None:
    """Turns it on, for the rest of the process."""
    _replace_cast()
    torch.get_autocast_gpu_dtype = _get_autocast_gpu_dtype
    torch.set_autocast_gpu_dtype = _set_autocast_gpu_dtype
