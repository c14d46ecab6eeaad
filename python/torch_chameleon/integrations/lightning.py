"""Lightning on the device: `Trainer(**trainer_kwargs(), max_epochs=3)`.

Lightning takes the device from the strategy, and its default strategy for an
accelerator that it does not know is the CPU. So the three that belong together
come from one function, and the accelerator refuses any other device. In
processes that torchrun started they train together.
"""

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy

from torch_chameleon import _C, _ranks, chameleon

__all__ = [
    "ChameleonAccelerator",
    "ChameleonDDPStrategy",
    "ChameleonStrategy",
    "trainer_kwargs",
]


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
        """Returns indices of devices: one for each local rank."""
        count = _local_ranks()
        alone = count == 1 and devices in ("1", [0], "0,")
        if alone or devices in (count, "auto", -1, "-1"):
            return list(range(count))
        raise ValueError(
            f"devices={devices!r} is not possible on chameleon, allowed is "
            f"{count}: each process has one device, and torchrun says how many "
            "processes there are (torchrun --nproc-per-node 2 train.py)."
        )

    @staticmethod
    def get_parallel_devices(devices: list[int]) -> list[torch.device]:
        """Returns the devices of the local ranks."""
        count = chameleon.device_count()  # one, where each is shown one GPU
        return [torch.device("chameleon", index % count) for index in devices]

    @staticmethod
    def auto_device_count() -> int:
        """Returns how many devices `devices="auto"` means."""
        return _local_ranks()

    @staticmethod
    def is_available() -> bool:
        """Returns whether there is a device."""
        return chameleon.is_available()

    @staticmethod
    def name() -> str:
        """Returns the name of the accelerator."""
        return "chameleon"


def _local_ranks() -> int:
    return _C.local_ranks()[1] if _ranks.is_launched() else 1


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


_Strategy = TypeVar("_Strategy", bound=type)


def _says_cuda_out_of_memory(strategy: _Strategy) -> _Strategy:
    """Lightning's batch-size finder knows errors of CUDA by their text."""
    for name in (
        *("training_step", "validation_step", "test_step", "predict_step"),
        *("backward", "optimizer_step", "batch_to_device"),
    ):
        setattr(strategy, name, _in_cuda_words(getattr(strategy, name)))
    return strategy


@_says_cuda_out_of_memory
class ChameleonStrategy(SingleDeviceStrategy):
    """Lightning's strategy for one device.

    Lightning's batch-size finder tries a smaller batch after errors of CUDA,
    which it knows by their text. Here out-of-memory errors have those words.
    """


@_says_cuda_out_of_memory
class ChameleonDDPStrategy(DDPStrategy):
    """Lightning's strategy for several processes, each with one device."""

    def _get_process_group_backend(self) -> str:
        return self._process_group_backend or "chameleon"

    def determine_ddp_device_ids(self) -> None:
        """Returns none: where there are some, Lightning opens CUDA's stream."""


def trainer_kwargs(precision: str = "32-true", **ddp: Any) -> dict[str, Any]:
    """Returns what makes a Lightning Trainer train on the device.

    Args:
        precision: As `Trainer(precision=...)`. For "16-mixed" and "bf16-mixed"
            Lightning itself would open autocast for "cuda".
        ddp: In processes that torchrun started: arguments for Lightning's
            `DDPStrategy`, such as `find_unused_parameters=True`. In one process
            they are not used.

    Returns:
        Arguments for `lightning.pytorch.Trainer`.
    """
    kwargs: dict[str, Any] = {"accelerator": ChameleonAccelerator()}
    if _ranks.is_launched():
        count = _local_ranks()
        kwargs["strategy"] = ChameleonDDPStrategy(**ddp)
        kwargs["devices"] = count
        kwargs["num_nodes"] = int(os.environ["WORLD_SIZE"]) // count
    else:
        kwargs["strategy"] = ChameleonStrategy(device="chameleon:0")
        kwargs["devices"] = 1
    if precision in ("16-mixed", "bf16-mixed"):
        kwargs["plugins"] = [MixedPrecision(precision, device="chameleon")]
    else:
        kwargs["precision"] = precision
    return kwargs
