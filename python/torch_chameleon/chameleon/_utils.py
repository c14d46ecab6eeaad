"""How a device argument becomes an index; torch.serialization asks for it."""

import torch
from torch.types import Device

from torch_chameleon import _C

# What the device is called; `torch_chameleon.as_cuda` adds "cuda".
names = {"chameleon"}


def _get_device_index(
    device: Device, optional: bool = False, allow_cpu: bool = False
) -> int:
    """Same as `torch.cuda._utils._get_device_index`, for this device.

    Args:
        device: An index, "chameleon", "chameleon:1", a torch.device or None.
        optional: Whether None (or no index) means the current device.
        allow_cpu: Whether a CPU device is accepted, as -1.

    Raises:
        ValueError: The device is another kind, or misses an index.
    """
    if isinstance(device, int):
        return device
    if device is None:
        index = None
    else:
        device = torch.device(device)
        if allow_cpu and device.type == "cpu":
            return -1
        if device.type not in names:
            raise ValueError(f"Expected a chameleon device, but got: {device}")
        index = device.index
    if index is not None:
        return index
    if not optional:
        raise ValueError(
            "Expected a chameleon device with a specified index or an integer, "
            f"but got: {device}"
        )
    return _C.current_device()
