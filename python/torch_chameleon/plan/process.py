"""Runs `script.py` in a process of its own."""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from torch_chameleon.plan import overlay, ranks
from torch_chameleon.plan.run import Run
from torch_chameleon.plan.script import NOTE

_Asked = TypeVar("_Asked")
_Done = TypeVar("_Done")
_AT_A_TIME = 2  # runs; each has a planning thread of its own
_CHILD = "from torch_chameleon.plan.script import main; main()"
_running: set[int] = set()  # process groups
_stopped = False  # for good


class ScriptError(Exception):
    """The user's script did not get as far as was asked."""


def run_script(run: Run, folder: pathlib.Path) -> dict[str, Any]:
    """Runs a script on the simulated GPU.

    What it prints goes nowhere; its error is part of ours. What it writes is
    kept away from the user's files.

    Args:
        run: What to run, and on what.
        folder: An empty folder for what it writes.

    Returns:
        Its figures, see `budgets.Budgets`; as "kept_away" what
        `overlay.changes` gives, and as "notes" what the user should know.

    Raises:
        ScriptError: It failed.
        ValueError: Its writes cannot be kept away.
    """
    environment = {
        **os.environ,
        **overlay.environment(folder),
        "PYTHONHASHSEED": "0",  # sets have the same order in each run
        "TORCHDYNAMO_DISABLE": "1",  # eager, op by op
        "CUDA_VISIBLE_DEVICES": "",
        **ranks.variables(run.gpus, run.nodes),
    }
    result = folder / "result.json"
    errors = folder / "errors.txt"
    with errors.open("wb") as file:
        status = _run_to_end(
            [
                *(sys.executable, "-c", _CHILD),
                *(json.dumps(dataclasses.asdict(run)), str(result)),
                str(os.getpid()),
            ],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=file,
        )
    if status != 0:
        raise ScriptError(
            f"{run.script} failed on the simulated {run.gpu}:\n"
            + _error_of(errors.read_text(errors="replace"), run.script)
        )
    if not result.exists():
        raise ScriptError(
            f"{run.script} ended its process before it had trained"
        )
    figures: dict[str, Any] = json.loads(result.read_text())
    if "error" in figures:
        raise ScriptError(figures["error"])
    figures["kept_away"] = overlay.changes(folder)
    figures["notes"] = [
        line.removeprefix(NOTE)
        for line in errors.read_text(errors="replace").splitlines()
        if line.startswith(NOTE)
    ]
    return figures


def _run_to_end(command: list[str], **options: Any) -> int:
    """Runs a process; nothing that it started outlives it.

    Returns:
        Its exit status.
    """
    with subprocess.Popen(command, start_new_session=True, **options) as child:
        _running.add(child.pid)
        try:
            if _stopped:
                _kill(child.pid)
            return child.wait()
        finally:
            _running.discard(child.pid)
            _kill(child.pid)


def side_by_side(
    work: Callable[[_Asked], _Done], asked: list[_Asked]
) -> list[_Done]:
    """Does work that runs scripts, two at a time; an error ends all runs.

    Args:
        work: What to do.
        asked: For what.
    """
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        try:
            return list(pool.map(work, asked))
        except BaseException:  # Ctrl-C reaches no other thread
            stop()
            raise


def stop() -> None:
    """Ends all runs of other threads, and later ones; they fail."""
    global _stopped
    _stopped = True
    for group in tuple(_running):
        _kill(group)


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _error_of(output: str, script: str) -> str:
    """Where in the script, and with what error, out of a traceback."""
    lines = output.strip().splitlines()
    file = os.path.abspath(script)
    places = [line for line in lines if f'File "{file}"' in line]
    notes = [line for line in lines if line.startswith(NOTE)]
    lines = [line for line in lines if line not in notes]
    starts = [
        number
        for number, line in enumerate(lines)
        if re.match(r"[\w.]*(Error|Exception|Exit)\b", line)
    ]
    error = lines[starts[-1] :][:3] if starts else lines[-3:]
    notes = [note.removeprefix(NOTE) for note in notes]
    return "\n".join(
        f"  {line.strip()}" for line in [*places[-1:], *error, *notes]
    )
