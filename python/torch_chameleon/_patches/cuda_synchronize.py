"""`torch.cuda.synchronize` of this device.

Torch's PowerSGD waits so for the gradients' device wherever there is a GPU,
whatever that device is.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_chameleon import chameleon


def _wait_for_ours(wait: Callable[[Any], None]) -> Callable[..., None]:
    @functools.wraps(wait)
    def waited(device: Any = None) -> None:
        if isinstance(device, torch.device) and device.type == "chameleon":
            chameleon.synchronize(device)
        else:
            wait(device)

    return waited


def install() -> None:
    """Once a process."""
    torch.cuda.synchronize = _wait_for_ours(torch.cuda.synchronize)
