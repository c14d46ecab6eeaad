"""Runs a script that prints its figures as JSON, in a process of its own."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys


def figures(
    script: pathlib.Path,
    arguments: dict,
    environment: dict[str, str],
    limit_s: float | None = None,
) -> dict:
    """The last line of what a script prints; its error as a row, if it fails.

    Args:
        script: The file; it takes its arguments as one JSON object.
        arguments: These.
        environment: Variables beside those of this process. What can be
            imported here can be imported there.
        limit_s: It is ended after so many seconds; that is its error then.
    """
    path = os.pathsep.join(filter(None, sys.path))
    try:
        done = subprocess.run(
            [sys.executable, script, json.dumps(arguments)],
            env={**os.environ, "PYTHONPATH": path, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {limit_s:.0f} s"}
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    lines = done.stderr.strip().splitlines()
    return {"error": lines[-1] if lines else f"exit status {done.returncode}"}
