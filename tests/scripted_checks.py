"""Checks that run in one process of their own, on the CPU or an emulated GPU.

A script defines them and prints what became of each, by name, as JSON; a test
module reports them one by one.
"""

import json
import os
import pathlib
import subprocess
import sys

import emulated_cuda
import pytest

HERE = pathlib.Path(__file__).resolve().parent
PHYSICAL = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(
            not emulated_cuda.can_be_built(), reason=emulated_cuda.NEEDS
        ),
    ),
]


def outcomes(script, request, schedule):
    """A function that runs the script and returns what it says, by check.

    Args:
        script: Its path, in a folder of tests/.
        request: Pytest's, for the folder that the emulated GPU is built in.
        schedule: How the emulated GPU behaves.
    """
    known = {}

    def run(physical):
        if physical not in known:
            folder = request.config.cache.mkdir("emulated_cuda")
            known[physical] = (
                _on_cpu(script)
                if physical == "cpu"
                else emulated_cuda.outcomes(script, folder, schedule)
            )
        return known[physical]

    return run


def _on_cpu(script):
    path = [str(HERE), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])
