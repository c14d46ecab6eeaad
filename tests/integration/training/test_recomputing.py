"""Trainings whose plans drop and re-run leave the native bits."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from support import needs_testing

pytestmark = needs_testing

PROGRAM = pathlib.Path(__file__).with_name("recomputing.py")


def trained(*arguments, recompute="auto"):
    """Statistics of a training, which left the native bits."""
    done = subprocess.run(
        [sys.executable, PROGRAM, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CHAMELEON_RECOMPUTE": recompute},
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["differ"] == []
    assert result["stats"]["held_bytes"] == 0
    return result["stats"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "k", "reruns"),
    [("gpt", 1.25, 0), ("gpt", 2, 50), ("gpt", 4, 50), ("resnet", 4, 10)],
)
def test_bits(model, k, reruns):
    assert trained(model, k)["rerun_ops"] >= reruns


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["lru", "forecast"])
def test_little_host_memory(policy):
    """Where the host holds a tenth of what swaps alone take.

    What persists (parameters, optimizer state) fits into both together.
    """
    alone = trained("gpt", 2, policy, recompute="off")
    assert alone["rerun_ops"] == alone["dropped_bytes"] == 0
    host_budget = alone["peak_host_bytes"] // 10 // 512 * 512
    assert host_budget > 1 << 20
    stats = trained("gpt", 2, policy, host_budget)
    assert stats["peak_host_bytes"] <= stats["host_budget"] == host_budget
    assert stats["rerun_ops"] > 0


@pytest.mark.slow
def test_a_host_that_holds_what_the_plan_moves():
    """Is as good as any, also where it holds less than HBM does."""
    plenty = trained("gpt", 2)
    little = trained("gpt", 2, "forecast", plenty["hbm_budget"] // 2)
    for key in ("rerun_ops", "bytes_in"):
        assert little[key] == plenty[key]
