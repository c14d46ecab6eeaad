"""Files are those that CUDA writes and reads: tensors in them are on "cuda"."""

from typing import Any

import torch
from torch import serialization

from torch_chameleon._as_cuda.names import ours_for

_BEFORE_CUDA = 15  # torch asks in this order; "cuda" itself has 20


def _tag(storage: Any) -> str | None:
    device = storage.device
    if device.type != "chameleon":
        return None
    return f"cuda:{device.index}"


def _restore(storage: Any, location: str) -> Any:
    return serialization._deserialize("chameleon", storage, ours_for(location))


def install() -> None:
    """Turns it on, for the rest of the process."""
    torch.serialization.register_package(_BEFORE_CUDA, _tag, _restore)
