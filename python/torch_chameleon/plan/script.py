"""One run of a user's script on the simulated GPU, in a process of its own.

    main() with the command line ARGUMENTS FILE

ARGUMENTS are those of `Run` as JSON. The script trains within one budget after
the other, a few steps each, and is then stopped; the figures are written to
FILE.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import torch_chameleon
from torch_chameleon import _C, _script, _steps, config, profiler
from torch_chameleon._as_cuda import as_cuda
from torch_chameleon.plan import machine, no_uploads, no_values, overlay
from torch_chameleon.plan.kinds import Convolutions
from torch_chameleon.plan.reads import EndlessLoopError, Reads
from torch_chameleon.plan.steps import are_enough, figures_of

_UNLIMITED = 2 << 40
# What the plan asks about; a script that sets it for itself does not.
_PLANNED = (
    *("physical_device", "simulated_gpu", "policy"),
    *("hbm_budget", "host_budget", "oversubscription", "max_slowdown"),
)
_ASKED = {"hbm_budget": "--budget", "host_budget": "--host"}
_told: set[str] = set()  # of these, what the user was told about
_set_option = _C.set_option
NOTE = "torch_chameleon plan: "  # begins a line for the user on stderr
_LEAST_STEPS = 2  # the first one makes the optimizer's state
_SAME_DEVICE = "Expected all tensors to be on the same device"
_CPU_STEPS = 4  # of optimizers; then the script trains on the CPU


@dataclasses.dataclass
class Run:
    """What to run, and on what.

    Attributes:
        script: The user's file.
        arguments: Its command line.
        gpu: The simulated card, or its figures.
        budgets: Bytes of device memory to live in, one after the other, from
            large to small; None: there is always room.
        host: Bytes of host memory; None: there is always room.
        steps: Steps of the training within each budget, at most.
        trace: Where to write traces of the steps that are reported, in the
            overlay's folder, as TRACE.0, TRACE.1 and so on; empty: nowhere.
    """

    script: str
    arguments: list[str]
    gpu: str
    budgets: list[int | None]
    host: int | None = None
    steps: int = 8
    trace: str = ""


class _EnoughStepsError(BaseException):
    """Leaves the script; no `except Exception` of it may keep this."""


class _StoppedError(BaseException):
    """Leaves the script, for a reason that is its message."""


class _Budgets:
    """Goes from budget to budget when steps within one told enough."""

    def __init__(self, run: Run) -> None:
        self.points: list[dict[str, Any]] = []
        self._run = run
        self._convolutions = Convolutions()
        self._steps: list[dict[str, Any]] = []
        self._peak_host_bytes = 0
        # The first budget holds from the start, as it does where the script
        # trains: what the first steps move to the host counts.
        self._set_budget()

    def _set_budget(self) -> None:
        budget = self._run.budgets[len(self.points)]
        try:
            _set_option("hbm_budget", str(budget or _UNLIMITED))
        except ValueError as error:  # what is there cannot leave
            raise torch.OutOfMemoryError(str(error)) from None

    def begin(self) -> None:
        """Makes the next budget the one in force."""
        if self.points:
            self._set_budget()
            self._peak_host_bytes = 0
        else:
            self._peak_host_bytes = torch_chameleon.swap_stats()[
                "peak_host_bytes"
            ]
        torch_chameleon.reset_swap_stats()
        self._steps = []
        if self._run.trace:
            profiler.record_timeline()  # times every op: durations are exact

    @property
    def steps(self) -> int:
        """Steps within the budget in force."""
        return len(self._steps)

    def step_ended(self) -> None:
        """Listens to the ends of steps."""
        step = {**profiler.last_step()}
        if not self.points and not self._steps:
            self.begin()  # its peak is that of steps
        self._steps.append(step)
        if not are_enough(self._steps, self._run.steps):
            return
        self.end()
        if len(self.points) == len(self._run.budgets):
            raise _EnoughStepsError
        self.begin()

    def end(self) -> None:
        """Keeps what the steps within the budget in force told, if any."""
        if len(self._steps) < _LEAST_STEPS:
            return
        if self._run.trace:
            profiler.record_timeline(False)
            profiler.export_trace(f"{self._run.trace}.{len(self.points)}")
        stats = torch_chameleon.swap_stats()
        self.points.append(
            {
                "peak_logical_bytes": stats["peak_logical_bytes"],
                "peak_host_bytes": max(
                    self._peak_host_bytes, stats["peak_host_bytes"]
                ),
                "steps": self.steps,
                "settled": are_enough(self._steps, self._run.steps),
                "convolutions": self._convolutions.shares(),
            }
            | figures_of(self._steps)
        )
        self._steps = []


def _set_up(run: Run) -> None:
    config.physical_device = "simulated"
    config.simulated_gpu = machine.with_room(run.gpu)
    config.host_budget = _UNLIMITED if run.host is None else run.host
    config.oversubscription = 64.0
    config.policy = "forecast"
    as_cuda()
    no_values.install()


def _set_by_script(key: str, text: str | None) -> None:
    if key not in _PLANNED:
        _set_option(key, text)
    elif key in _ASKED and key not in _told:
        _told.add(key)
        print(
            f"{NOTE}the script sets {key} = {text}, which plan leaves aside; "
            f"say {_ASKED[key]} to plan with it",
            file=sys.stderr,
        )


def _watch_for_the_cpu(budgets: _Budgets, script: str) -> None:
    """Stops a script that trains where no plan is needed."""
    seen = 0

    def stepped(optimizer: torch.optim.Optimizer, *rest: Any) -> None:
        nonlocal seen
        seen += 1
        if budgets.points or budgets.steps or seen < _CPU_STEPS:
            return
        kinds = {
            parameter.device.type
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        if kinds == {"cpu"}:
            why = f"{type(optimizer).__name__}'s parameters are there"
            raise _StoppedError(_trains_on_the_cpu(script, why))

    register_optimizer_step_post_hook(stepped)


def _trains_on_the_cpu(script: str, why: str) -> str:
    return f"{script} trains on the CPU: {why}. {_switches(script)}"


def _switches(script: str) -> str:
    text = pathlib.Path(script).read_text(errors="replace")
    found = re.findall(
        r"[\"'](--(?:use[-_])?(?:accel|accelerator|cuda|gpu|gpus|device)"
        r"(?:[-_]id)?)[\"']",
        text,
    )
    if not found:
        return 'A plan is of what is on "cuda".'
    return f"Is it told to use the GPU, by {' or '.join(sorted(set(found)))}?"


@contextlib.contextmanager
def _one_process(script: str) -> Iterator[None]:
    """Refuses what needs processes beside the script's own."""

    def refuse(*args: Any, **options: Any) -> None:
        raise _StoppedError(
            f"{script} trains in several processes (torch.distributed), and a "
            "plan is of one without them: give it the options for a single GPU"
        )

    import torch.distributed
    import torch.multiprocessing

    with contextlib.ExitStack() as stack:
        for owner, name in (
            (torch.distributed, "init_process_group"),
            (torch.multiprocessing, "spawn"),
            (torch.multiprocessing, "start_processes"),
        ):
            stack.enter_context(mock.patch.object(owner, name, refuse))
        yield


def _train(run: Run) -> dict[str, Any]:
    """Runs the script; returns its figures."""
    _set_up(run)
    reads = Reads(run.script)
    reads.install()
    budgets = _Budgets(run)
    _steps.listen(budgets.step_ended)
    _steps.listen(reads.step_ended)
    _watch_for_the_cpu(budgets, run.script)
    error = None
    with (
        mock.patch.object(_C, "set_option", _set_by_script),
        _one_process(run.script),
    ):
        try:
            _script.run_script(run.script, run.arguments)
        except _EnoughStepsError:
            pass
        except (_StoppedError, EndlessLoopError) as stopped:
            return {"error": str(stopped)}
        except torch.OutOfMemoryError as exhausted:
            error = str(exhausted)
        except Exception as failed:
            # What depends on values, such as an evaluation, may fail when
            # enough was seen.
            if budgets.steps < _LEAST_STEPS and not budgets.points:
                if no_values.unasked() and _SAME_DEVICE in str(failed):
                    why = "it moves no module to the GPU"
                    return {"error": _trains_on_the_cpu(run.script, why)}
                _explain(reads)
                raise
        except SystemExit as leaving:
            if leaving.code not in (None, 0):
                raise
    if error is None:
        budgets.end()  # it had fewer steps than it was asked for
    if not budgets.points and error is None:
        return {
            "error": f"{run.script} ended after {budgets.steps} steps on the "
            "GPU; a plan needs two (is it a training script, and are its "
            "arguments right?)"
        }
    return {
        "points": budgets.points,
        "out_of_memory": error,
        "reads": reads.places(),
    }


def _explain(reads: Reads) -> None:
    """Says behind the error's traceback what may have led to it."""
    places = reads.places()
    if places:
        print(
            f"{NOTE}values do not exist under plan, what is read is 1 or "
            f"False; {reads.sentence()}",
            file=sys.__stderr__,
            flush=True,
        )


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
