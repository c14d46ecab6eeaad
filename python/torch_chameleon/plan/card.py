"""What a script is told of the card: the one that was asked about.

`plan` runs on a card with room for everything (`machine.with_room`), which the
script does not see.
"""

from typing import Any

import torch
from torch.types import Device

from torch_chameleon import _C, chameleon
from torch_chameleon.chameleon import memory, properties
from torch_chameleon.plan import machine


class Card:
    """Answers in the place of the functions of `torch.chameleon`.

    Args:
        gpu: A card, or figures.
    """

    def __init__(self, gpu: str) -> None:
        profile = _C.gpu_profile(gpu)
        self._product = str(profile["product"])
        self._total_bytes = machine.for_programs(profile["memory_bytes"])
        self._properties = properties.get_device_properties

    def install(self) -> None:
        """Turns it on, before `as_cuda` copies the functions."""
        torch.accelerator.get_memory_info = self.mem_get_info
        for name in ("get_device_properties", "mem_get_info"):
            for module in (chameleon, properties, memory):
                if hasattr(module, name):
                    setattr(module, name, getattr(self, name))

    def get_device_properties(self, device: Device = None) -> Any:
        """As `torch.cuda.get_device_properties`.

        Args:
            device: The device, default the current one.
        """
        return self._properties(device)._replace(
            name=self._product, total_memory=self._total_bytes
        )

    def mem_get_info(self, device: Device = None) -> tuple[int, int]:
        """As `torch.cuda.mem_get_info`: what tensors leave, and all.

        Args:
            device: The device, default the current one.
        """
        taken = machine.CONTEXT_BYTES + memory.memory_allocated(device)
        return max(0, self._total_bytes - taken), self._total_bytes
