"""tests/benchmarks/training: every training and way runs, at small size."""

import json
import pathlib
import subprocess
import sys

import emulated_cuda
import pytest
from benchmark_trainings import TRAININGS

FOLDER = pathlib.Path(__file__).parents[1] / "benchmarks" / "training"

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
    offload = {"fsdp2_offload", "trl_offload", "torchao_offload"}
    offload |= {"deepspeed_zero2", "deepspeed_zero3"}
    assert failed.keys() <= offload, failed
    not_here = {way for way in failed if failed[way].startswith("not here")}
    assert failed.keys() == not_here, failed
    assert points[f"{training} chameleon 0"]["commits"] == 0
    if training == "tiny":  # it has no budget
        return
    ours = points[f"{training} chameleon 2"]
    assert ours["peak_bytes"] <= ours["budget_bytes"]
    assert ours["in_gb"] > 0


@pytest.mark.skipif(
    not emulated_cuda.can_be_built(), reason=emulated_cuda.NEEDS
)
def test_a_point_on_emulated_cuda(monkeypatch, tmp_path):
    budget = 2560 << 10
    point = {"training": "llama_1.3b", "way": "chameleon", "budget": budget}
    monkeypatch.setenv(
        "CHAMELEON_TEST_POINT", json.dumps({**point, "small": True})
    )
    script = pathlib.Path(__file__).with_name("benchmark_on_emulated_cuda.py")
    row = emulated_cuda.outcomes(script, tmp_path, "random seed=3")
    assert "error" not in row
    assert row["peak_bytes"] <= budget
    assert row["in_gb"] > 0
    assert row["bound/ours"] > 0
    assert row["commits"] == row["cuda_mallocs"] == row["host_waits"] == 0
    assert row["pageable_bytes"] == 0


def test_the_table_goes_between_the_marks(tmp_path):
    row = {"ms": 2.0, "p99_ms": 3.0, "peak_bytes": 1 << 30}
    row["process_host_bytes"] = 1 << 30
    machine = {"gpu": "none", "torch": "2.11", "date": "today"}
    results = {
        "machine": {**machine, "commands": ["./ci/gpu"]},
        "points": {
            "tiny in_memory 0": row,
            "tiny checkpoint 4": {"error": "out of memory"},
        },
    }
    file, page = tmp_path / "results.json", tmp_path / "README.md"
    file.write_text(json.dumps(results))
    page.write_text((FOLDER.parents[2] / "README.md").read_text())
    for _ in range(2):  # again is the same
        subprocess.run(
            [sys.executable, FOLDER / "table.py", file, "--readme", page],
            check=True,
        )
        text = page.read_text()
        assert "| tiny | - | in_memory | 2.0 | 3.0 | 1.00 |" in text
        assert "| tiny | 4 | checkpoint | out of memory |" in text
        assert text.count("Measured on none") == 1
