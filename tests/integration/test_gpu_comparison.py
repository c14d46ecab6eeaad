"""tests/gpu: what ci/gpu compares, with the CPU in the place of the GPU."""

import json
import pathlib
import subprocess
import sys

import pytest

COMPARE = pathlib.Path(__file__).parents[1] / "gpu" / "compare.py"
WORKLOADS = ["random_numbers", "adamw_fused", "adamw_foreach", "scaled_sgd"]
WORKLOADS += ["convolutions", "lstm", "gru", "transformer", "operators"]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("workload", WORKLOADS)
def test_it_has_native_bits(workload):
    done = subprocess.run(
        [sys.executable, COMPARE, "--on", "cpu", workload],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line[:1] == "{"]
    rows = [json.loads(line) for line in lines]
    assert rows[0]["compared"] > 0
    assert rows[0]["unstable"] == []
    assert all(row["evictions"] > 0 for row in rows[1:])


def test_no_op_writes_in_silence():
    done = subprocess.run(
        [sys.executable, COMPARE, "--on", "cpu", "silent_writers"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    row = json.loads(done.stdout.splitlines()[-2])
    assert row["calls"] > 10_000
    assert row["unknown"] == []
    assert ["aten::native_batch_norm", "running_mean"] in row["changed"]
