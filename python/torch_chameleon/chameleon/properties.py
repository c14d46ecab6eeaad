"""What a device is: its name, memory and compute capability."""

import os
from typing import NamedTuple

from torch.types import Device

from torch_chameleon import _C
from torch_chameleon.chameleon import _native_cuda
from torch_chameleon.chameleon._utils import _get_device_index

__all__ = [
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "is_bf16_supported",
    "is_tf32_supported",
]

_AMPERE = 8  # from this capability on there are TF32 and BF16
_WARP_SIZE = 32  # of every GPU


class DeviceProperties(NamedTuple):
    """What `get_device_properties` returns."""

    name: str
    total_memory: int  # bytes: the limit of logical memory
    major: int  # compute capability; 0.0 where the physical device has none
    minor: int
    multi_processor_count: int
    warp_size: int  # 1 where the physical device has no warps


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Returns name, memory and capability of a device, which is a use of it.

    Args:
        device: The device, default the current one.
    """
    index = _get_device_index(device, optional=True)
    if not 0 <= index < _C.device_count():
        raise AssertionError(f"Invalid device id: {index}")
    physical = _C.physical_device()
    (major, minor), processors, warp = (0, 0), os.cpu_count() or 1, 1
    if physical == "simulated":
        card = _C.gpu_profile(str(_C.get_option("simulated_gpu")))
        physical += f" {_C.get_option('simulated_gpu')}"
        major, minor = card["capability"]
        processors, warp = card["multiprocessors"], _WARP_SIZE
    elif physical == "cuda":
        native = _native_cuda.get_device_properties(index)
        physical += f" {native.name}"
        major, minor = native.major, native.minor
        processors, warp = native.multi_processor_count, native.warp_size
    return DeviceProperties(
        name=f"Chameleon ({physical})",
        total_memory=_C.mem_get_info(index)[1],
        major=major,
        minor=minor,
        multi_processor_count=processors,
        warp_size=warp,
    )


def get_device_name(device: Device = None) -> str:
    """Returns a device's name. Same as `torch.cuda.get_device_name`."""
    return get_device_properties(device).name


def get_device_capability(device: Device = None) -> tuple[int, int]:
    """Returns the CUDA compute capability; (0, 0) where there is no GPU."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def is_tf32_supported() -> bool:
    """Returns whether the physical device computes in TF32."""
    return get_device_capability()[0] >= _AMPERE


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Returns whether the physical device computes in bfloat16.

    Args:
        including_emulation: Whether it also counts where a GPU has no
            arithmetic of its own for it, which kernels then emulate.
    """
    if including_emulation or _C.physical_device() == "cpu":
        return True  # CPU kernels take bfloat16 everywhere
    return get_device_capability()[0] >= _AMPERE
