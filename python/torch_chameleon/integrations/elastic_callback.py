"""A Hugging Face Trainer that goes on when its process is started again."""

from collections.abc import Callable
from typing import Any

import transformers

from torch_chameleon.elastic._random import RandomNumbers
from torch_chameleon.elastic._state import State

# What a Trainer has counted: of `trainer.state`, and of itself.
_COUNTED = (
    *("global_step", "epoch", "total_flos", "num_input_tokens_seen"),
    *("best_metric", "best_global_step", "best_model_checkpoint"),
    "log_history",
)
_LOGGED = (
    *("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged"),
    "current_flos",
)


class ElasticCallback(transformers.TrainerCallback):
    """Commits each step of a Trainer, and brings it back.

    Under `python -m torch_chameleon elastic`, or torchrun, a worker that is
    started again goes on behind the last committed step: the model, the
    optimizer, the schedule, random numbers, what was logged, and the place in
    the data, as after `resume_from_checkpoint`, but out of memory. Otherwise
    it does nothing.

    Args:
        trainer: Whose callback it is to be. Who evaluates or saves at a step
            has done so before the step is committed.

    Raises:
        RuntimeError: The Trainer is of a version that has no such epochs.

    Examples:
        trainer.add_callback(ElasticCallback(trainer))
    """

    def __init__(self, trainer: transformers.Trainer) -> None:
        missing = {"_run_epoch", "_load_rng_state"} - set(dir(trainer))
        if missing:
            raise RuntimeError(
                "ElasticCallback is written against transformers 5.24; in "
                f"{transformers.__version__} a Trainer has no {min(missing)}()"
            )
        self._trainer: Any = trainer
        self._state: State | None = None
        self._committed = 0  # steps
        self._random: dict[str, Any] | None = None  # to be set when it goes on

    def on_train_begin(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        """Goes back to the last committed step, if there is one.

        Args:
            args: Of the Trainer.
            state: Its state.
            control: Not used.
            **kwargs: Not used.
        """
        trainer = self._trainer
        optimizer, began_at = trainer.optimizer, state.global_step
        self._state = State(
            model=trainer.model,
            optimizer=getattr(optimizer, "optimizer", optimizer),
            scheduler=trainer.lr_scheduler,
            trainer=_Progress(trainer),
        )
        self._committed = state.global_step
        if state.global_step == began_at:
            return
        self._random = RandomNumbers().state_dict()
        trainer._initial_global_step = began_at
        trainer._run_epoch = self._going_on(trainer._run_epoch)
        trainer._load_rng_state = lambda checkpoint: None  # on_step_begin does

    def on_step_begin(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        """Commits the step before, with all that was done behind it.

        Args:
            args: Of the Trainer.
            state: Its state.
            control: Not used.
            **kwargs: Not used.
        """
        if self._random is not None:
            RandomNumbers().load_state_dict(self._random)
            self._random = None
        if self._state is not None and state.global_step > self._committed:
            self._committed = state.global_step
            self._state.commit()

    def _going_on(self, run_epoch: Callable[..., None]) -> Callable[..., None]:
        """Epochs that are done are none; the next one begins where it was."""
        done = self._committed

        def run(**given: Any) -> None:
            epochs, steps = divmod(done, given["num_update_steps_per_epoch"])
            if given["epoch"] < epochs:
                return
            accumulated = self._trainer.args.gradient_accumulation_steps
            run_epoch(
                **given
                | {
                    "resume_from_checkpoint": "in memory",
                    "epochs_trained": epochs,
                    "steps_trained_in_current_epoch": steps * accumulated,
                }
            )

        return run


class _Progress:
    """What a Trainer has counted and not logged yet."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """Returns numbers, rows of a log, and a loss."""
        counted = {
            name: getattr(self._trainer.state, name) for name in _COUNTED
        }
        logged = {name: getattr(self._trainer, name) for name in _LOGGED}
        return counted | logged

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        """Sets them.

        Args:
            kept: As they were.
        """
        for name in _COUNTED:
            setattr(self._trainer.state, name, kept[name])
        for name in _LOGGED:
            setattr(self._trainer, name, kept[name])
