"""tests/benchmarks/training: every training and way runs, at small size."""

import json
import pathlib
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).parents[1] / "benchmarks" / "training"
sys.path.insert(0, str(FOLDER))
from trainings import TRAININGS  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("training", TRAININGS)
def test_every_way_gives_figures(training, tmp_path):
    pytest.importorskip("transformers")
    file = tmp_path / "results.json"
    done = subprocess.run(
        [
            *(sys.executable, FOLDER / "run.py", "--device", "cpu", "--small"),
            *("--training", training, "--k", "2", "--results", file),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    points = json.loads(file.read_text())["points"]
    failed = {
        key.split()[1]: row["error"]
        for key, row in points.items()
        if "error" in row
    }
    assert failed.keys() <= {"fsdp2_offload", "torchao_offload"}, failed
    ours = points[f"{training} chameleon 2"]
    assert ours["peak_bytes"] <= ours["budget_bytes"]
    assert ours["in_gb"] > 0
