"""Counters of what swapping did, and the marker that ends a step."""

from torch.types import Device

from torch_chameleon import _C, _steps
from torch_chameleon.chameleon._utils import _get_device_index


def swap_stats(device: Device = None) -> dict[str, int]:
    """Counters of memory, transfers and forecasts of one device.

    Bytes end in `_bytes`, nanoseconds in `_ns`, the others count events.
    `*_bytes` levels and `*_budget` are values of now; `peak_*` are maxima, and
    all others sums, since the last `reset_swap_stats`. No use of the device:
    before its first use all are 0.

    Args:
        device: The device, default the current one.

    Returns:
        The counters by name, in a fixed order.

    Examples:
        >>> import torch, torch_chameleon
        >>> x = torch.ones(1024, device="chameleon")
        >>> torch_chameleon.swap_stats()["logical_bytes"] >= 4096
        True
    """
    return _C.swap_stats(_get_device_index(device, optional=True))


def reset_swap_stats(device: Device = None) -> None:
    """Sets the sums of `swap_stats` to 0 and its peaks to the level of now.

    Args:
        device: The device, default the current one.
    """
    _C.reset_swap_stats(_get_device_index(device, optional=True))


def step(device: Device = None) -> None:
    """Marks the end of a training step, or of whatever repeats. Optional.

    Where a program does not call it, a step ends with its optimizer's
    (`config.step_marks`), and without an optimizer it is found when it has
    repeated. Where a program marks them, steps end there and nowhere else,
    until no marker came for four times the longest step.

    Args:
        device: The device, default the current one. No use of it: before its
            first use nothing happens.

    Examples:
        >>> import torch, torch_chameleon
        >>> x = torch.ones(4, device="chameleon")
        >>> for _ in range(3):
        ...     y = (x * 2).sum()
        ...     torch_chameleon.step()
        >>> torch_chameleon.profiler.last_step()["ops"]
        2
    """
    _steps.marked(_get_device_index(device, optional=True))
