"""One run of a user's script on the simulated GPU, in a process of its own.

    python -m torch_chameleon.plan.script ARGUMENTS FILE

ARGUMENTS are those of `Run` as JSON. A training step ends where the script's
first optimizer has stepped; after `steps` of them the script is stopped, and
the figures are written to FILE.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import sys
import warnings
from typing import Any
from unittest import mock

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import torch_chameleon
from torch_chameleon import _C, _script, config, profiler
from torch_chameleon._as_cuda import as_cuda
from torch_chameleon.plan import no_uploads, no_values, overlay

_UNLIMITED = "2TiB"
# What the plan asks about; a script that sets it for itself does not.
_PLANNED = (
    *("physical_device", "simulated_gpu", "policy", "oracle_trace"),
    *("hbm_budget", "host_budget", "oversubscription"),
)
_set_option = _C.set_option


@dataclasses.dataclass
class Run:
    """What to run, and on what.

    Attributes:
        script: The user's file.
        arguments: Its command line.
        gpu: The simulated card.
        steps: Training steps to run.
        budget: Bytes of HBM to live in; None: there is always room.
        policy: What decides on swapping.
        trace: Where to write the last step's trace, in the overlay's folder;
            empty: nowhere.
    """

    script: str
    arguments: list[str]
    gpu: str
    steps: int
    budget: int | None = None
    policy: str = "forecast"
    trace: str = ""


class _EnoughStepsError(BaseException):
    """Leaves the script; no `except Exception` of it may keep this."""


class _Steps:
    """Counts the steps of the first optimizer that steps."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.done = 0
        self.figures: list[dict[str, Any]] = []
        self._optimizer: torch.optim.Optimizer | None = None

    def __call__(
        self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any
    ) -> None:
        self._optimizer = self._optimizer or optimizer
        if optimizer is not self._optimizer:
            return
        torch_chameleon.step()
        self.figures.append({**profiler.last_step()})
        self.done += 1
        if self.done >= self.wanted:
            raise _EnoughStepsError


def _set_up(run: Run) -> None:
    config.physical_device = "simulated"
    # Room for everything beside the budget: what does not fit is said by name.
    config.simulated_gpu = (
        f"base={run.gpu}, memory={_UNLIMITED}, host_memory={_UNLIMITED}"
    )
    config.hbm_budget = _UNLIMITED if run.budget is None else run.budget
    config.oversubscription = 64.0
    config.policy = run.policy
    as_cuda()
    no_values.install()


def _set_by_script(key: str, text: str | None) -> None:
    if key not in _PLANNED:
        _set_option(key, text)


def _train(run: Run) -> dict[str, Any]:
    """Runs the script; returns its figures."""
    _set_up(run)
    if run.trace:
        profiler.record_timeline()  # times every op, so durations are exact
    steps = _Steps(run.steps)
    register_optimizer_step_post_hook(steps)
    torch_chameleon.reset_swap_stats()
    with (
        mock.patch.object(_C, "set_option", _set_by_script),
        contextlib.suppress(_EnoughStepsError),
    ):
        try:
            _script.run_script(run.script, run.arguments)
        except SystemExit as leaving:
            if leaving.code not in (None, 0):
                raise
    if steps.done < 2:
        return {
            "error": f"{run.script} ended after {steps.done} optimizer steps; "
            "a plan needs two (is it a training script, and are its "
            "arguments right?)"
        }
    if run.trace:
        profiler.record_timeline(False)
        profiler.export_trace(run.trace)
    stats = torch_chameleon.swap_stats()
    return {
        "steps": steps.figures,
        "peak_logical_bytes": stats["peak_logical_bytes"],
        "peak_host_bytes": stats["peak_host_bytes"],
    }


def main() -> None:
    """The process's whole life."""
    overlay.start()
    no_uploads.install()
    run, file = Run(**json.loads(sys.argv[1])), pathlib.Path(sys.argv[2])
    warnings.simplefilter("ignore")
    result = json.dumps(_train(run))
    file.write_text(result)
    os._exit(0)  # the script's threads and workers are not waited for


if __name__ == "__main__":
    main()
