"""Hugging Face Trainer on the device, and what is built on it (TRL, PEFT).

`ACCELERATE_TORCH_DEVICE=chameleon` (`integrations.accelerate.enable()`) is
enough for float32 where no GPU is visible to PyTorch. `TrainingArguments`
here works everywhere, with bf16 too; other classes of arguments get the same
by inheriting `OnChameleon` first:

    class Arguments(OnChameleon, trl.SFTConfig):
        pass

Written against transformers 5.
"""

from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
import transformers

from torch_chameleon import _ranks, chameleon
from torch_chameleon.integrations import accelerate
from torch_chameleon.integrations.elastic_callback import ElasticCallback

__all__ = ["DeviceRng", "ElasticCallback", "OnChameleon", "TrainingArguments"]


class OnChameleon:
    """Mixin for `transformers.TrainingArguments` and what inherits it.

    The Trainer would take "cuda:0" where a GPU is visible, and bf16 only on
    devices of known makers. In several processes each takes the device of its
    local rank, and they train together.

    Raises:
        ValueError: For `fp16=True`, which accelerate does not do here.
    """

    bf16: bool
    bf16_full_eval: bool
    ddp_timeout: int
    distributed_state: Any
    fp16: bool
    use_cpu: bool

    @cached_property
    def _setup_devices(self) -> torch.device:
        if _ranks.is_launched() and not self.use_cpu:
            return self._setup_of_rank()
        # accelerate would take the variable's device even with use_cpu.
        with accelerate.device_variable(None if self.use_cpu else "chameleon"):
            found: torch.device = super()._setup_devices  # type: ignore[misc]
        if self.use_cpu:
            return found
        self._n_gpu = 1
        return torch.device("chameleon", 0)

    def _setup_of_rank(self) -> torch.device:
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)  # as it does
        accelerate.enable(timeout=timedelta(seconds=self.ddp_timeout))
        self.distributed_state = accelerate.state_of_ranks()
        self._n_gpu = 1
        return _ranks.device_of_rank()

    def _validate_args(self) -> None:
        if self.use_cpu:
            super()._validate_args()  # type: ignore[misc]
            return
        if self.fp16:
            raise ValueError(
                "fp16=True does not work on chameleon, because accelerate has "
                "a list of devices for it: use bf16=True."
            )
        wanted = self.bf16, self.bf16_full_eval
        self.bf16 = self.bf16_full_eval = False  # would ask for a known GPU
        try:
            super()._validate_args()  # type: ignore[misc]
        finally:
            self.bf16, self.bf16_full_eval = wanted


class TrainingArguments(OnChameleon, transformers.TrainingArguments):
    """`transformers.TrainingArguments`, on chameleon."""


class DeviceRng(
    transformers.TrainerCallback,
    transformers.trainer_callback.ExportableState,
):
    """Keeps the device's random numbers in a Trainer's checkpoints.

    `Trainer(callbacks=[DeviceRng()])`: training goes on after
    `resume_from_checkpoint` as if it had not stopped, dropout included. The
    Trainer itself saves the generators of the CPU and of known makers'
    devices; where the device's generator is the CPU's, nothing is added.
    """

    def __init__(self) -> None:
        self._resumed: list[torch.Tensor] = []

    def state(self) -> dict[str, Any]:
        """Returns what `trainer_state.json` is to hold."""
        states = chameleon.get_rng_state_all()
        if torch.equal(states[0], torch.get_rng_state()):
            states = []
        saved = [state.numpy().tobytes().hex() for state in states]
        return {"args": {}, "attributes": {"saved": saved}}

    def on_train_begin(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        """Reads the generators' states, if a checkpoint is resumed."""
        found = state.stateful_callbacks.setdefault(type(self).__name__, {})
        found = found[0] if isinstance(found, list) else found
        self._resumed = [
            torch.frombuffer(bytearray.fromhex(one), dtype=torch.uint8)
            for one in found.get("attributes", {}).get("saved", [])
            if state.global_step > 0
        ]

    def on_step_begin(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        """Sets the generators before the first step, as the Trainer does."""
        if self._resumed:
            chameleon.set_rng_state_all(self._resumed)
            self._resumed = []
