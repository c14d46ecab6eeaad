"""The device as torch.compile's front end knows it.

torch._dynamo keeps a table of device interfaces: which functions are streams,
events and device changes. Importing it takes a second, so it is changed when
somebody else imports it.
"""

from typing import Any

import torch
from torch.types import Device

from torch_chameleon import _C, chameleon
from torch_chameleon._patches.after_import import after_import


class _Worker:
    """What Inductor asks in processes that must not use the device."""

    @staticmethod
    def set_device(device: int) -> None:
        chameleon.set_device(device)

    @staticmethod
    def current_device() -> int:
        return chameleon.current_device()

    @staticmethod
    def get_device_properties(device: Device = None) -> Any:
        # Asked of every device before anything is compiled, for none of them.
        if device is None and not chameleon.is_initialized():
            return None
        return chameleon.get_device_properties(device)


def _capability(device: Device = None) -> int:
    major, minor = chameleon.get_device_capability(device)
    return major * 10 + minor


def _set_stream_by_id(stream_id: int, index: int, kind: int) -> None:
    chameleon.set_stream(
        torch.Stream(stream_id=stream_id, device_index=index, device_type=kind)
    )


def _register(module: Any) -> None:
    members: dict[str, Any] = {
        "Event": chameleon.Event,
        "Stream": chameleon.Stream,
        "Worker": _Worker,
        "device": chameleon.device,
    }
    for name in (
        "current_device",
        "current_stream",
        "device_count",
        "get_device_properties",
        "is_available",
        "is_bf16_supported",
        "memory_allocated",
        "set_device",
        "set_stream",
        "stream",
        "synchronize",
    ):
        members[name] = staticmethod(getattr(chameleon, name))
    members["exchange_device"] = staticmethod(chameleon._exchange_device)
    members["maybe_exchange_device"] = staticmethod(
        chameleon._maybe_exchange_device
    )
    members["get_compute_capability"] = staticmethod(_capability)
    members["_set_stream_by_id"] = staticmethod(_set_stream_by_id)
    interface = type("ChameleonInterface", (module.DeviceInterface,), members)
    module.register_interface_for_device("chameleon", interface)
    for index in range(_C.device_count()):
        module.register_interface_for_device(f"chameleon:{index}", interface)


def install() -> None:
    """Registers the device, now or when the table is imported."""
    after_import("torch._dynamo.device_interface", _register)
