"""torch.chameleon: the device module, with the names of torch.cuda.

`torch.chameleon` is this package. What generic code asks of a device is here
or in the modules beside: random, streams, memory, amp, properties.

First use: the physical device is chosen when something first needs it.
`is_available`, `device_count`, `is_initialized`, `current_device`, seeding and
statistics do not.
"""

from types import TracebackType
from typing import Any

import torch
from torch.types import Device

from torch_chameleon import _C
from torch_chameleon.chameleon import _native_cuda
from torch_chameleon.chameleon import _utils as _utils
from torch_chameleon.chameleon import amp as amp
from torch_chameleon.chameleon import memory as memory
from torch_chameleon.chameleon import properties as properties
from torch_chameleon.chameleon import random as random
from torch_chameleon.chameleon import streams as streams
from torch_chameleon.chameleon._utils import _get_device_index
from torch_chameleon.chameleon.amp import *  # noqa: F403
from torch_chameleon.chameleon.memory import *  # noqa: F403
from torch_chameleon.chameleon.properties import *  # noqa: F403
from torch_chameleon.chameleon.random import *  # noqa: F403
from torch_chameleon.chameleon.streams import *  # noqa: F403

__all__ = [
    "can_device_access_peer",
    "current_device",
    "device",
    "device_count",
    "device_of",
    "get_arch_list",
    "get_gencode_flags",
    "init",
    "ipc_collect",
    "is_available",
    "is_current_stream_capturing",
    "is_initialized",
    "set_device",
    *amp.__all__,
    *memory.__all__,
    *properties.__all__,
    *random.__all__,
    *streams.__all__,
]


def is_available() -> bool:
    """Returns whether there is a device. No use of it."""
    return _C.device_count() > 0


def device_count() -> int:
    """Returns how many devices there are. No use of them."""
    return _C.device_count()


def is_initialized() -> bool:
    """Returns whether the device was used in this process."""
    return _C.first_use() is not None


def init() -> None:
    """Uses the device: from now on the physical device is fixed."""
    _C.init()


def _lazy_init() -> None:
    _C.init()


def _is_in_bad_fork() -> bool:
    return _C.is_in_bad_fork()


def __getattr__(name: str) -> Any:
    # torch.utils.checkpoint reads it to know whether there is a random state.
    if name == "_initialized":
        return is_initialized()
    if name == "default_generators":
        return tuple(map(_C.default_generator, range(device_count())))
    raise AttributeError(f"module 'torch.chameleon' has no attribute {name!r}")


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    """Returns False: copies between devices go through the host.

    Args:
        device: A device.
        peer_device: Another one.
    """
    for each in (device, peer_device):
        index = _get_device_index(each)
        if not 0 <= index < device_count():
            raise AssertionError(f"Invalid device id: {index}")
    return False


def get_arch_list() -> list[str]:
    """Returns the GPU architectures that kernels were built for: torch's."""
    return _native_cuda.get_arch_list()


def get_gencode_flags() -> str:
    """Returns the flags for them: torch's."""
    return _native_cuda.get_gencode_flags()


def ipc_collect() -> None:
    """Does nothing: tensors are not shared between processes."""


def is_current_stream_capturing() -> bool:
    """Returns False: graphs do not capture ops on this device."""
    return False


def current_device() -> int:
    """Returns the index of this thread's current device."""
    return _C.current_device()


def set_device(device: Device) -> None:
    """Makes a device the current one of this thread.

    Args:
        device: The device; a negative index changes nothing.
    """
    index = _get_device_index(device)
    if index >= 0:
        _C.set_device(index)


def _exchange_device(device: int) -> int:
    """Sets the current device and returns the previous; -1: no change."""
    return _C.exchange_device(device)


# Differs from the one above only in that it need not create a context.
_maybe_exchange_device = _exchange_device


class device:  # noqa: N801 (torch.cuda's name)
    """Changes the current device inside a `with` block.

    Args:
        device: The device; a negative index or None changes nothing.
    """

    def __init__(self, device: Device) -> None:
        self.idx = -1 if device is None else _get_device_index(device, True)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.idx = _exchange_device(self.prev_idx)


class device_of(device):  # noqa: N801 (torch.cuda's name)
    """Changes the current device to a tensor's inside a `with` block.

    Args:
        obj: A tensor or storage; nothing changes if it is on another kind.
    """

    def __init__(self, obj: torch.Tensor | torch.UntypedStorage) -> None:
        is_ours = obj.device.type == "chameleon"
        super().__init__(obj.get_device() if is_ours else -1)
