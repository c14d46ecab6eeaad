"""Runs `script.py` in a process of its own."""

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

from torch_chameleon.plan import overlay
from torch_chameleon.plan.script import Run


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
        Its figures, see `script.Run`, and as "kept_away" what `overlay.changes`
        gives.

    Raises:
        ScriptError: It failed.
        ValueError: Its writes cannot be kept away.
    """
    environment = {
        **os.environ,
        **overlay.environment(folder),
        "TORCHDYNAMO_DISABLE": "1",  # eager, op by op
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch_chameleon.plan.script",
            json.dumps(dataclasses.asdict(run)),
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ScriptError(
            f"{run.script} failed on the simulated {run.gpu}:\n"
            + _error_of(done.stderr, run.script)
        )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "error" in result:
        raise ScriptError(result["error"])
    result["kept_away"] = overlay.changes(folder)
    return result


def _error_of(output: str, script: str) -> str:
    """Where in the script, and with what error, out of a traceback."""
    lines = output.strip().splitlines()
    places = [line for line in lines if f'File "{script}"' in line]
    starts = [
        number
        for number, line in enumerate(lines)
        if re.match(r"[\w.]*(Error|Exception|Exit)\b", line)
    ]
    error = lines[starts[-1] :][:3] if starts else lines[-3:]
    return "\n".join(f"  {line.strip()}" for line in [*places[-1:], *error])
