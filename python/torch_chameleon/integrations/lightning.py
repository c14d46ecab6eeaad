"""Lightning on the device: `Trainer(**trainer_kwargs(), max_epochs=3)`.

Lightning takes the device from the strategy, and its default strategy for an
accelerator that it does not know is the CPU. So the three that belong together
come from one function, and the accelerator refuses any other device.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy

from torch_chameleon import chameleon

__all__ = ["ChameleonAccelerator", "ChameleonStrategy", "trainer_kwargs"]


class ChameleonAccelerator(Accelerator):
    """What Lightning asks of a device.

    `DeviceStatsMonitor` logs `torch.chameleon.memory_stats()`.
    """

    def setup_device(self, device: torch.device) -> None:
        """Sets the current device.

        Raises:
            RuntimeError: If the strategy would train on another device.
        """
        if device.type != "chameleon":
            raise RuntimeError(
                f"ChameleonAccelerator was given the device {device}, which is "
                "Lightning's default: use Trainer(**torch_chameleon."
                "integrations.lightning.trainer_kwargs(), ...)."
            )
        chameleon.set_device(device)

    def teardown(self) -> None:
        """Gives memory that is not in use back."""
        chameleon.empty_cache()

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """Returns `torch.chameleon.memory_stats(device)`."""
        return dict(chameleon.memory_stats(device))

    @staticmethod
    def parse_devices(devices: Any) -> list[int]:
        """Returns indices of devices: a Trainer has one."""
        if devices in (1, "1", "auto", -1, "-1", [0], "0,"):
            return [0]
        raise ValueError(
            f"devices={devices!r} is not possible on chameleon, allowed is 1: "
            "a Trainer has one device."
        )

    @staticmethod
    def get_parallel_devices(devices: list[int]) -> list[torch.device]:
        """Returns the devices of the indices."""
        return [torch.device("chameleon", index) for index in devices]

    @staticmethod
    def auto_device_count() -> int:
        """Returns how many devices `devices="auto"` means."""
        return 1

    @staticmethod
    def is_available() -> bool:
        """Returns whether there is a device."""
        return chameleon.is_available()

    @staticmethod
    def name() -> str:
        """Returns the name of the accelerator."""
        return "chameleon"


def _in_cuda_words(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def worded(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except torch.OutOfMemoryError as error:
            if "CUDA" in str(error):
                raise
            raise torch.OutOfMemoryError(
                f"{error} (To Lightning this is a CUDA out of memory error.)"
            ) from error

    return worded


class ChameleonStrategy(SingleDeviceStrategy):
    """Lightning's strategy for one device.

    Lightning's batch-size finder tries a smaller batch after errors of CUDA,
    which it knows by their text. Here out-of-memory errors have those words.
    """

    training_step = _in_cuda_words(SingleDeviceStrategy.training_step)
    validation_step = _in_cuda_words(SingleDeviceStrategy.validation_step)
    test_step = _in_cuda_words(SingleDeviceStrategy.test_step)
    predict_step = _in_cuda_words(SingleDeviceStrategy.predict_step)
    backward = _in_cuda_words(SingleDeviceStrategy.backward)
    optimizer_step = _in_cuda_words(SingleDeviceStrategy.optimizer_step)
    batch_to_device = _in_cuda_words(SingleDeviceStrategy.batch_to_device)


def trainer_kwargs(precision: str = "32-true") -> dict[str, Any]:
    """Returns what makes a Lightning Trainer train on the device.

    Args:
        precision: As `Trainer(precision=...)`. For "16-mixed" and "bf16-mixed"
            Lightning itself would open autocast for "cuda".

    Returns:
        Arguments for `lightning.pytorch.Trainer`.
    """
    kwargs: dict[str, Any] = {
        "accelerator": ChameleonAccelerator(),
        "strategy": ChameleonStrategy(device="chameleon:0"),
        "devices": 1,
    }
    if precision in ("16-mixed", "bf16-mixed"):
        kwargs["plugins"] = [MixedPrecision(precision, device="chameleon")]
    else:
        kwargs["precision"] = precision
    return kwargs
