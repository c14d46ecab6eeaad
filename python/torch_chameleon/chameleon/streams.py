"""Streams and events: torch's device-independent ones, named as in torch.cuda.

Without an argument they belong to the current accelerator, which is chameleon
in every process where it is registered.
"""

from types import TracebackType

import torch
from torch import Event, Stream
from torch.types import Device

from torch_chameleon import _C
from torch_chameleon.chameleon._utils import _get_device_index

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "set_stream",
    "stream",
    "synchronize",
]


class StreamContext:
    """Makes a stream the current one inside a `with` block.

    The current device becomes the stream's and is restored afterwards.

    Args:
        stream: The stream; None changes nothing.
    """

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.stream is not None:
            self.stream.__exit__(kind, error, trace)


def stream(stream: Stream | None) -> StreamContext:
    """Same as `torch.cuda.stream`: see `StreamContext`."""
    return StreamContext(stream)


def current_stream(device: Device = None) -> Stream:
    """Returns the current stream of a device, default the current one."""
    return torch.accelerator.current_stream(
        _get_device_index(device, optional=True)
    )


def default_stream(device: Device = None) -> Stream:
    """Returns the default stream of a device, default the current one."""
    index = _get_device_index(device, optional=True)
    kind = torch._C._autograd.DeviceType.PrivateUse1
    return Stream(stream_id=0, device_index=index, device_type=int(kind.value))


def set_stream(stream: Stream | None) -> None:
    """Makes a stream the current one; None changes nothing."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


def synchronize(device: Device = None) -> None:
    """Waits for all work of a device, default the current one."""
    _C.synchronize(_get_device_index(device, optional=True))
