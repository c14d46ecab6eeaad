"""From budget to budget while a script trains; what its steps were like."""

from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from torch_chameleon import _C, profiler
from torch_chameleon.plan.kinds import Convolutions
from torch_chameleon.plan.peaks import Peaks
from torch_chameleon.plan.run import Run
from torch_chameleon.plan.sizes import are_seen
from torch_chameleon.plan.steps import are_enough, figures_of

UNLIMITED = 2 << 40
LEAST_STEPS = 2  # the first one makes the optimizer's state


class EnoughStepsError(BaseException):
    """Leaves the script; no `except Exception` of it may keep this."""


class Budgets:
    """Goes to the next budget when steps within one told enough.

    A point is what the steps within one budget were like: the figures of a
    usual one, and as "each" those of all.
    """

    def __init__(self, run: Run) -> None:
        self.points: list[dict[str, Any]] = []
        self.seen = 0  # steps
        self._run = run
        self._convolutions = Convolutions()
        self._peaks = Peaks()
        self._peaks.install()
        self._before_training = register_module_forward_pre_hook(self._forward)
        self._steps: list[dict[str, Any]] = []
        self._set_option = _C.set_option  # a script's own calls are not heard
        # The first budget holds from the start, as it does where the script
        # trains: what the first steps move to the host counts.
        self._set_budget()

    def _forward(self, module: Any, inputs: Any) -> None:
        """Begins the first step with the first module that is called.

        What came before made the model, which here is on the device from the
        start and in the program often is not: it is no step's memory.
        """
        devices = {
            each.device for each in inputs if isinstance(each, torch.Tensor)
        }
        for device in devices:
            if device.type == "chameleon":
                self._before_training.remove()
                self._peaks.forget("peak_logical_bytes")
                if self._run.budgets[0] is None:
                    _C.step(device.index)  # its ops are no step's either
                return

    def _set_budget(self) -> None:
        budget = self._run.budgets[len(self.points)]
        try:
            self._set_option("hbm_budget", str(budget or UNLIMITED))
        except ValueError as error:  # what is there cannot leave
            raise torch.OutOfMemoryError(str(error)) from None

    def step_ended(self) -> None:
        """Listens to the ends of steps."""
        self._before_training.remove()
        step = {**profiler.last_step(), "number": self.seen}
        if self._run.trace:
            if not self.seen:
                # From here on durations are exact; the device is in use now.
                profiler.record_timeline()
            file = f"{self._run.trace}.{len(self.points)}.{len(self._steps)}"
            profiler.export_trace(file)
        peaks = self._peaks.take()
        step["peak_bytes"] = peaks["peak_logical_bytes"]
        step["peak_host_bytes"] = peaks["peak_host_bytes"]
        self.seen += 1
        self._steps.append(step)
        if self._are_enough():
            self._next()

    def _are_enough(self) -> bool:
        if self._run.budgets[len(self.points)] is None:
            return are_seen(self._steps, self._run.steps)
        if not self.points and self.seen < self._run.least:
            return False
        return are_enough(self._steps, self._run.steps)

    def _next(self) -> None:
        self.end()
        if len(self.points) == len(self._run.budgets):
            raise EnoughStepsError
        self._set_budget()
        self._peaks.take()

    def end(self) -> None:
        """Keeps what the steps within the budget in force told, if any."""
        if len(self._steps) < LEAST_STEPS:
            return
        last = self._peaks.take()  # behind the last step, if the script ended
        each = [
            {name: step[name] for name in step if name != "plan"}
            for step in self._steps
        ]
        self.points.append(
            {
                "peak_logical_bytes": max(
                    *(step["peak_bytes"] for step in each),
                    last["peak_logical_bytes"],
                ),
                "peak_host_bytes": max(
                    *(step["peak_host_bytes"] for step in each),
                    last["peak_host_bytes"],
                ),
                "peak_behind_bytes": last["peak_logical_bytes"],
                "steps": len(each),
                "each": each,
                "settled": are_enough(self._steps, self._run.steps),
                "convolutions": self._convolutions.shares(),
                "oversubscription": float(
                    _C.get_option("oversubscription") or 1
                ),
            }
            | {
                name: value
                for name, value in figures_of(each).items()
                if not name.startswith("peak_")
            }
        )
        self._steps = []
