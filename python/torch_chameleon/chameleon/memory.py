"""Memory figures under torch.cuda's names.

They are about *logical* memory: what programs allocate, wherever the bytes
are. `memory_allocated` counts live tensor bytes, `memory_reserved` the same
after rounding, and `mem_get_info` tells (limit - live, limit), where the limit
is `oversubscription x hbm_budget`. Physical figures are in
`torch_chameleon.swap_stats` and under the `swap.` keys of `memory_stats`.

Nothing here is a first use of the device: before it, all figures are 0.
"""

from collections import OrderedDict
from typing import Any

import torch
from torch.types import Device

from torch_chameleon import _C
from torch_chameleon.chameleon import _snapshot as _snapshots
from torch_chameleon.chameleon._snapshot import memory_snapshot
from torch_chameleon.chameleon._utils import _get_device_index

__all__ = [
    "OutOfMemoryError",
    "empty_cache",
    "get_allocator_backend",
    "get_per_process_memory_fraction",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]

OutOfMemoryError = torch.OutOfMemoryError

# With torch.cuda.memory's names, which have an underscore though they are
# documented.
_record_memory_history = _snapshots.record_memory_history
_snapshot = _snapshots.snapshot
_dump_snapshot = _snapshots.dump_snapshot


def memory_stats(device: Device = None) -> OrderedDict[str, Any]:
    """Same keys as `torch.cuda.memory_stats`, and `swap.` with `swap_stats`.

    Args:
        device: The device, default the current one.

    Returns:
        Counters by name, sorted; empty before the device's first use.
    """
    if _C.first_use() is None:
        return OrderedDict()
    index = _get_device_index(device, optional=True)
    stats = dict(torch.accelerator.memory.memory_stats(index))
    for key, value in _C.swap_stats(index).items():
        stats[f"swap.{key}"] = value
    return OrderedDict(sorted(stats.items()))


def memory_stats_as_nested_dict(device: Device = None) -> dict[str, Any]:
    """Same as `memory_stats`, with a dict for each part of a key.

    Args:
        device: The device, default the current one.
    """
    nested: dict[str, Any] = {}
    for key, value in memory_stats(device).items():
        *path, last = key.split(".")
        level = nested
        for part in path:
            level = level.setdefault(part, {})
        level[last] = value
    return nested


def get_allocator_backend() -> str:
    """Returns the name of what allocates: "chameleon"."""
    return "chameleon"


def _stat(key: str, device: Device) -> int:
    return int(memory_stats(device).get(key, 0))


def memory_allocated(device: Device = None) -> int:
    """Returns the bytes of all live tensors."""
    return _stat("allocated_bytes.all.current", device)


def max_memory_allocated(device: Device = None) -> int:
    """Returns the peak of `memory_allocated` since the last reset."""
    return _stat("allocated_bytes.all.peak", device)


def memory_reserved(device: Device = None) -> int:
    """Returns the bytes of all live tensors, each one rounded up."""
    return _stat("reserved_bytes.all.current", device)


def max_memory_reserved(device: Device = None) -> int:
    """Returns the peak of `memory_reserved` since the last reset."""
    return _stat("reserved_bytes.all.peak", device)


def reset_peak_memory_stats(device: Device = None) -> None:
    """Sets all peaks to the level of now."""
    index = _get_device_index(device, optional=True)
    if _C.first_use() is not None:
        torch.accelerator.memory.reset_peak_memory_stats(index)


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Sets all sums to 0."""
    index = _get_device_index(device, optional=True)
    if _C.first_use() is not None:
        torch.accelerator.memory.reset_accumulated_memory_stats(index)


def empty_cache() -> None:
    """Gives unused committed memory back to the system."""
    if _C.first_use() is not None:
        for index in range(_C.device_count()):
            _C.empty_cache(index)


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Returns how many bytes may still be allocated, and the limit.

    `set_per_process_memory_fraction` changes neither, as with torch.cuda.

    Args:
        device: The device, default the current one.
    """
    return _C.mem_get_info(_get_device_index(device, optional=True))


def set_per_process_memory_fraction(
    fraction: float, device: Device = None
) -> None:
    """Limits what may be allocated to a part of `total_memory`.

    As torch.cuda's: `get_device_properties().total_memory`, which is
    `oversubscription` times `hbm_budget`, and `mem_get_info` stay as they are.
    How much of it is in device memory at a time is the budget's to say. No use
    of the device.

    Args:
        fraction: From 0 to 1. With 0.0 nothing can be allocated.
        device: The device, default the current one.

    Raises:
        TypeError: The fraction is not a float.
        ValueError: It is not from 0 to 1, or more than that is live already.
    """
    index = _get_device_index(device, optional=True)
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(
            f"Invalid fraction value: {fraction}. Allowed range: 0~1"
        )
    _C.set_memory_fraction(index, fraction)


def get_per_process_memory_fraction(device: Device = None) -> float:
    """Returns what `set_per_process_memory_fraction` was given, or 1.0.

    Args:
        device: The device, default the current one.
    """
    return _C.memory_fraction(_get_device_index(device, optional=True))


_LEVELS = (
    ("Allocated (logical)", "logical_bytes", "peak_logical_bytes"),
    ("Resident (device)", "resident_bytes", "peak_resident_bytes"),
    ("On the host", "host_bytes", "peak_host_bytes"),
)
_BUDGETS = ("hbm_budget", "host_budget")


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """Returns the figures of one device as a table to print.

    What tensors take, wherever they are; what of it is in device memory, and
    what the host holds; then the counters of `torch_chameleon.swap_stats`, each
    with its unit, or none where it counts events.

    Args:
        device: The device, default the current one.
        abbreviated: Leave out what is 0.
    """
    index = _get_device_index(device, optional=True)
    stats = _C.swap_stats(index)
    lines = [
        f"chameleon:{index} memory summary",
        f"{'':<20} {'now':>14} {'peak':>14}",
    ]
    for name, now, peak in _LEVELS:
        sizes = [_C.format_bytes(stats.pop(key)) for key in (now, peak)]
        lines.append(f"{name:<20} {sizes[0]:>14} {sizes[1]:>14}")
    lines += [
        f"{key:<20} {_C.format_bytes(stats.pop(key)):>14}" for key in _BUDGETS
    ]
    if stats["compute_ns"] == 0:  # not every device keeps that time
        del stats["compute_ns"]
    for key, value in stats.items():
        if value or not abbreviated:
            name = key.removesuffix("_bytes").removesuffix("_ns")
            lines.append(f"{name:<20} {_with_unit(key, value):>14}")
    return "\n".join(lines) + "\n"


def _with_unit(key: str, value: int) -> str:
    if "bytes" in key:
        return _C.format_bytes(value)
    if key.endswith("_ns"):
        return f"{value / 1e6:,.2f} ms"
    return f"{value:,}"
