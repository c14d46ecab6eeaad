"""Hugging Face accelerate on the device: `enable()` before the Accelerator.

accelerate knows a list of makers' devices and takes any other from the
environment. What its checkpoints leave out is `RngState`:

    enable()
    accelerator = Accelerator(mixed_precision="bf16")
    accelerator.register_for_checkpointing(RngState())

What stays different: `mixed_precision="fp16"` is refused by accelerate for
devices that are not on its list (bf16 is not), its `clear_device_cache` does
nothing here, and `device_map` takes `{"": "chameleon:0"}`, no integers.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

from torch_chameleon import chameleon

__all__ = ["RngState", "enable"]

_VARIABLE = "ACCELERATE_TORCH_DEVICE"


def enable(device: str = "chameleon") -> None:
    """Makes accelerate, and the Trainers above it, take the device.

    Same as `ACCELERATE_TORCH_DEVICE=chameleon` in the environment, and looks
    whether it comes in time.

    Args:
        device: The device, default the first.

    Raises:
        RuntimeError: If accelerate has decided on another device already.
    """
    from accelerate import PartialState

    state: dict[str, Any] = PartialState._shared_state
    found = state.get("device")
    if found is not None and torch.device(found).type != "chameleon":
        raise RuntimeError(
            f"accelerate already uses {found}: call "
            "torch_chameleon.integrations.accelerate.enable() before the first "
            "Accelerator or TrainingArguments is made."
        )
    os.environ[_VARIABLE] = device


@contextlib.contextmanager
def device_variable(device: str | None) -> Iterator[None]:
    """Sets the variable for a while; None: takes it away."""
    saved = os.environ.pop(_VARIABLE, None)
    if device is not None:
        os.environ[_VARIABLE] = device
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)
        if saved is not None:
            os.environ[_VARIABLE] = saved


class RngState:
    """The device's random numbers, for `register_for_checkpointing`."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of each device's generator."""
        return {"chameleon": chameleon.get_rng_state_all()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Sets the generators to what `state_dict` returned."""
        chameleon.set_rng_state_all(state["chameleon"])
