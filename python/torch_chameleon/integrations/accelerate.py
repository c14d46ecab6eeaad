"""Hugging Face accelerate on the device: `enable()` before the Accelerator.

accelerate knows a list of makers' devices and takes any other from the
environment. What its checkpoints leave out is `RngState`:

    enable()
    accelerator = Accelerator(mixed_precision="bf16")
    accelerator.register_for_checkpointing(RngState())

What stays different: `mixed_precision="fp16"` is refused by accelerate for
devices that are not on its list (bf16 is not), its `clear_device_cache` does
nothing here, and `device_map` takes `{"": "chameleon:0"}`, no integers.

In several processes, which torchrun or `accelerate launch` started, `enable()`
is needed: with the variable alone each would train by itself.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

from torch_chameleon import _ranks, chameleon

__all__ = ["RngState", "enable"]

_VARIABLE = "ACCELERATE_TORCH_DEVICE"


def enable(device: str | None = None, **group: Any) -> None:
    """Makes accelerate, and the Trainers above it, take the device.

    In one process it is `ACCELERATE_TORCH_DEVICE=chameleon` in the environment,
    and looks whether it comes in time. In several it makes the process group,
    unless there is one, the device the current one, and accelerate's state.

    Args:
        device: The device, default that of the local rank, which in one
            process is the first.
        group: Options of `torch.distributed.init_process_group`, such as
            `timeout`; the Accelerator's own `InitProcessGroupKwargs` come too
            late for a group.

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
    if not _ranks.is_launched():
        os.environ[_VARIABLE] = device or "chameleon"
        return
    place = torch.device(device) if device else _ranks.device_of_rank()
    os.environ[_VARIABLE] = str(place)
    if found is None:
        chameleon.set_device(place)
        state_of_ranks(**group)


def state_of_ranks(**group: Any) -> Any:
    """What accelerate knows of one process of several.

    It would look for known makers' devices, find none and train alone in each
    process. A state that is there already stays.

    Args:
        group: Options of `torch.distributed.init_process_group`.

    Returns:
        The state, which all `accelerate.PartialState` share.
    """
    from accelerate import DistributedType, PartialState

    class State(PartialState):
        def _prepare_backend(
            self, *_: Any, **__: Any
        ) -> tuple[str, DistributedType]:
            # Of all kinds it is the one that is built of torch's collectives
            # and DistributedDataParallel, and of nothing else.
            return "chameleon", DistributedType.MULTI_GPU

    State(**group)
    return PartialState()  # which can be pickled


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
