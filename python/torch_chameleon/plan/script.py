"""One run of a user's script on the simulated GPU, in a process of its own.

    main() with the command line ARGUMENTS FILE PARENT

ARGUMENTS are those of `Run` as JSON. The script trains within one budget after
the other, a few steps each, and is then stopped; the figures are written to
FILE. The process ends with the one whose id is PARENT.
"""

import ctypes
import json
import os
import pathlib
import random
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from torch_chameleon import _C, _script, _steps, config
from torch_chameleon._as_cuda import as_cuda
from torch_chameleon._changes.optimizers import Optimizers
from torch_chameleon._patches.after_import import after_import
from torch_chameleon.plan import machine, no_uploads, no_values, overlay
from torch_chameleon.plan.budgets import (
    LEAST_STEPS,
    UNLIMITED,
    Budgets,
    EnoughStepsError,
)
from torch_chameleon.plan.card import Card
from torch_chameleon.plan.ranks import Ranks, RanksError
from torch_chameleon.plan.reads import EndlessLoopError, Reads
from torch_chameleon.plan.run import Run

# What the plan asks about; a script that sets it for itself does not.
_PLANNED = (
    *("physical_device", "simulated_gpu", "simulated_share", "policy"),
    *("hbm_budget", "host_budget", "oversubscription", "max_slowdown"),
)
_ASKED = {
    "hbm_budget": "--budget",
    "host_budget": "--host",
    "oversubscription": "--oversubscription",
    "simulated_share": "--share",
}
_set_option = _C.set_option
NOTE = "torch_chameleon plan: "  # begins a line for the user on stderr
_EVALUATION = r"(?i)eval|valid|predict|metric|generate"  # in names of functions
_SAME_DEVICE = "Expected all tensors to be on the same device"
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_CPU_STEPS = 4  # of optimizers; then the script trains on the CPU


class _StoppedError(BaseException):
    """Leaves the script, for a reason that is its message."""


def _set_up(run: Run) -> None:
    config.physical_device = "simulated"
    config.simulated_gpu = machine.with_room(run.gpu)
    config.host_budget = UNLIMITED if run.host is None else run.host
    if run.oversubscription is not None:
        config.oversubscription = run.oversubscription
    config.policy = "forecast"
    config.simulated_share = run.share
    Card(run.gpu).install()
    as_cuda()
    no_values.install()


def _setter(run: Run) -> Callable[[str, str | None], None]:
    """What takes the place of `_C.set_option` for the script."""
    told: set[str] = set()
    planned = {*_PLANNED}
    if run.oversubscription is None:
        planned.remove("oversubscription")  # nobody asks about another one

    def set_by_script(key: str, text: str | None) -> None:
        if key not in planned:
            _set_option(key, text)
        elif key in _ASKED and key not in told:
            told.add(key)
            _say(
                f"the script sets {key} = {text}, which plan leaves aside; "
                f"say {_ASKED[key]} to plan with it"
            )

    return set_by_script


def _say(sentence: str) -> None:
    """Tells the user, past what the script does with its stderr."""
    print(f"{NOTE}{sentence}", file=sys.__stderr__, flush=True)


def _watch_for_the_cpu(budgets: Budgets, script: str) -> None:
    """Stops a script that trains where no plan is needed."""
    seen = 0

    def stepped(optimizer: torch.optim.Optimizer, *rest: Any) -> None:
        nonlocal seen
        seen += 1
        if budgets.seen or seen < _CPU_STEPS:
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


def _train(run: Run) -> dict[str, Any]:
    """Runs the script; returns its figures."""
    _set_up(run)
    reads = Reads(run.script)
    reads.install()
    budgets = Budgets(run)
    optimizers = Optimizers()
    optimizers.install()
    _steps.listen(budgets.step_ended)
    _steps.listen(reads.step_ended)
    _watch_for_the_cpu(budgets, run.script)
    ranks = Ranks(run.script, run.gpus, run.nodes)
    error = failure = None
    ended = evaluates = False
    with (
        mock.patch.object(_C, "set_option", _setter(run)),
        ranks.installed(),
    ):
        try:
            _script.run_script(run.script, run.arguments)
            ended = True
        except EnoughStepsError:
            pass
        except (_StoppedError, RanksError, EndlessLoopError) as stopped:
            return {"error": str(stopped)}
        except torch.OutOfMemoryError as exhausted:
            error = str(exhausted)
        except Exception as failed:
            if budgets.seen < LEAST_STEPS:
                if no_values.unasked() and _SAME_DEVICE in str(failed):
                    why = "it moves no module to the GPU"
                    return {"error": _trains_on_the_cpu(run.script, why)}
                _explain(reads)
                raise
            evaluates = _evaluates(failed)
            failure = _failure(failed, run.script)
        except SystemExit as leaving:
            if leaving.code not in (None, 0):
                raise
            ended = True
    if run.gpus > 1 and not ranks.made_a_group and error is None:
        return {
            "error": f"{run.script} makes no process group "
            "(torch.distributed.init_process_group), so it trains on one GPU: "
            "leave --gpus away"
        }
    if error is None:
        budgets.end()  # it had fewer steps than it was asked for
    if not budgets.points and error is None:
        return {
            "error": f"{run.script} ended after {budgets.seen} steps on the "
            "GPU; a plan needs two (is it a training script, and are its "
            "arguments right?)"
        }
    return {
        "points": budgets.points,
        "out_of_memory": error,
        "failure": None if evaluates else failure,
        "evaluation": failure if evaluates else None,
        "ended": ended,
        "seen": budgets.seen,
        "to_fuse": optimizers.to_fuse(),
        "states": optimizers.states(),
        "reads": reads.places(),
        "sizes": reads.sizes(),
    }


def _evaluates(error: Exception) -> bool:
    """Whether it came from an evaluation, by name; these may need values."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(re.search(_EVALUATION, frame.name) for frame in frames)


def _failure(error: Exception, script: str) -> str:
    """An error, and where in the script it came from."""
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    file = os.path.abspath(script)
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == file
    ]
    return f"{os.path.basename(file)}:{lines[-1]}: {text}" if lines else text


def _explain(reads: Reads) -> None:
    """Says behind the error's traceback what may have led to it."""
    if reads.places():
        _say(
            "values do not exist under plan, what is read is 1 or False; "
            + reads.sentence()
        )


def _see_the_same_steps() -> None:
    """Each run draws the same sizes; PyTorch's own seed is always the same."""
    random.seed(0)
    after_import("numpy", lambda numpy: numpy.random.seed(0))


def _end_with(parent: int) -> None:
    """Also where that one is killed, and can end nothing."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def main() -> None:
    """The process's whole life."""
    _end_with(int(sys.argv[3]))
    overlay.start()
    no_uploads.install()
    run, file = Run(**json.loads(sys.argv[1])), pathlib.Path(sys.argv[2])
    warnings.simplefilter("ignore")
    _see_the_same_steps()
    result = json.dumps(_train(run))
    file.write_text(result)
    os._exit(0)  # the script's threads and workers are not waited for


if __name__ == "__main__":
    main()
