"""Trainings whose plans drop and re-run leave the native bits."""

import json
import pathlib
import subprocess
import sys

import pytest

PROGRAM = pathlib.Path(__file__).with_name("recomputing.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "k", "reruns"),
    [("gpt", 1.25, 0), ("gpt", 2, 50), ("gpt", 4, 50), ("resnet", 4, 10)],
)
def test_bits(model, k, reruns):
    done = subprocess.run(
        [sys.executable, PROGRAM, model, str(k)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["differ"] == []
    assert result["stats"]["rerun_ops"] >= reruns
    assert result["stats"]["held_bytes"] == 0
