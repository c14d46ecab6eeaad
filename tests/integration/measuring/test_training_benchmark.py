"""tests/benchmarks/training: every training and way runs, at small size."""

import json
import os
import subprocess
import sys

import emulated_cuda
import pytest
from benchmark_trainings import TRAININGS
from support import ROOT, needs_testing

FOLDER = ROOT / "tests" / "benchmarks" / "training"
WAYS = ("chameleon", "checkpoint", "save_on_cpu", "micro_batch")
WAYS += ("fsdp2_offload", "fsdp2_offload_checkpoint", "trl_offload")
WAYS += ("torchao_offload", "deepspeed_zero2", "deepspeed_zero3")

pytestmark = [needs_testing, pytest.mark.slow]


@pytest.mark.parametrize("training", TRAININGS)
def test_every_way_gives_figures(training, tmp_path):
    pytest.importorskip("transformers")
    rows = [f"{training}/in_memory/0", f"{training}/chameleon/0"]
    rows += [f"{training}/{way}/2" for way in WAYS]
    done = subprocess.run(
        [
            *(sys.executable, ROOT / "tests/gpu/lease.py", "--on", "cpu"),
            *("--seconds", "600", "--out", tmp_path, *rows),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    points = json.loads((tmp_path / "cpu.json").read_text())["points"]
    failed = {
        key.split()[1]: row["error"]
        for key, row in points.items()
        if "error" in row
    }
    offload = {"trl_offload", "torchao_offload"}
    offload |= {"deepspeed_zero2", "deepspeed_zero3"}
    if training == "resnet50_channels_last":
        offload |= {"fsdp2_offload", "fsdp2_offload_checkpoint"}
    assert failed.keys() <= offload, failed
    not_here = {way for way in failed if failed[way].startswith("not here")}
    assert failed.keys() == not_here, failed
    assert points[f"{training} chameleon 0"]["commits"] == 0
    ours = points[f"{training} chameleon 2"]
    assert ours["peak_bytes"] <= ours["budget_bytes"]
    assert ours["in_gb"] > 0


LIMIT = """
import torch
from training_point import limit
limit("cuda", 4 << 20)
try:
    torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
    print('"the limit of the other ways does not hold"')
except torch.OutOfMemoryError:
    limit("cuda", 1 << 50)  # more than there is
    torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
    print('"it holds"')
"""


@pytest.mark.skipif(
    not emulated_cuda.can_be_built(), reason=emulated_cuda.NEEDS
)
def test_the_limit_of_other_ways(monkeypatch, tmp_path):
    paths = f"{FOLDER}:{ROOT / 'tests' / 'gpu'}"
    monkeypatch.setenv("PYTHONPATH", paths, prepend=":")
    script = tmp_path / "limit.py"
    script.write_text(LIMIT)
    assert emulated_cuda.outcomes(script, tmp_path, "prompt") == "it holds"


def left(folder, gpu, **changed):
    """What a lease leaves: a row that was timed, and one that was not."""
    row = {"ms": 2.0, "worst_ms": 3.0, "peak_bytes": 1 << 30}
    row |= {"machine_host_bytes": 1 << 30, "date": "2026-01-02"}
    row |= {"budget_bytes": 0} | changed
    machine = {"gpu": gpu, "is_gpu": True, "driver": "1.2", "torch": "2.11"}
    bits = {"here": [{"k": 1, "compared": 5, "different": []}]}
    results = {
        "machine": machine,
        "bits": {"lstm": bits},
        "operators": {"same": 9, "different": 0, "unstable": 1},
        "points": {
            "tiny in_memory 0": row,
            "tiny fsdp2_offload 2": row | {"budget_bytes": 5 * 10**8},
            "tiny checkpoint 4": {"error": "out of memory"},
        },
    }
    folder.mkdir()
    (folder / f"{gpu}.json").write_text(json.dumps(results))
    return folder


def test_the_table_goes_between_the_marks(tmp_path):
    page, results = tmp_path / "measured.md", tmp_path / "results"
    results.mkdir()
    (results / "other.json").write_text('{"machine": "of another benchmark"}')
    page.write_text((ROOT / "python/docs/measured.md").read_text())

    def table(*folder):
        command = [
            sys.executable,
            FOLDER / "training_table.py",
            "--page",
            page,
        ]
        command += ["--results", results, *folder]
        subprocess.run(command, check=True, capture_output=True)
        return " ".join(page.read_text().split())  # wrapped

    # The model has no profile of such a card: nothing is modelled.
    text = table(left(tmp_path / "one", "potato"))
    assert table() == text  # again is the same
    assert "*Measured on* potato, driver 1.2, torch 2.11, 2026-01-02" in text
    assert (
        "| tiny | all | in_memory | 2.0 | 64,000 | 3.0 | 1.00 | - | - |" in text
    )
    assert "| tiny | peak / 2 = 0.5 GB | fsdp2_offload | 2.0 |" in text
    assert "| tiny | peak / 4 = 0.0 GB | checkpoint | out of memory |" in text
    assert "5 results compared with native CUDA's, 0 different" in text
    # Measured once more, it is replaced; what was not stays.
    again = left(tmp_path / "two", "potato", ms=4.0)
    file = again / "potato.json"
    kept = json.loads(file.read_text())
    del kept["points"]["tiny checkpoint 4"]
    kept |= {"operators": {}, "bits": {}}  # were not run
    file.write_text(json.dumps(kept))
    text = table(again)
    assert "| tiny | all | in_memory | 4.0 | 32,000 |" in text
    assert "5 results compared with native CUDA's, 0 different" in text
    assert ": 9 the same, 0 different" in text
    assert "| tiny | peak / 4 = 0.0 GB | checkpoint | out of memory |" in text
    assert text.count("*Measured on* potato") == 1


def test_what_is_modelled_is_marked(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import training_table as table

    assert table.profile_of("NVIDIA H200") == "h200"
    assert table.profile_of("NVIDIA A100-SXM4-80GB") == "a100-80gb"
    assert table.profile_of("NVIDIA GeForce RTX 4090") == "rtx4090"
    assert table.profile_of("emulated") is None
    ms = table.modelled_ms("tiny", "in_memory", 0, "h200", small=True)
    assert ms > 0
    row = {"ms": 2 * ms, "worst_ms": 9.0, "modelled_ms": ms, "peak_bytes": 0}
    row |= {"machine_host_bytes": 0, "date": "2026-01-02"}
    text = table.table(
        {
            "machine": {"gpu": "potato", "driver": "1.2"},
            "points": {"tiny in_memory 0": row},
        }
    )
    assert f"| 9.0 | 1.00 | - | {ms:.1f} | 2.00 |" in text


def test_what_else_was_found_is_told(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    from findings import sentences

    adamw = {"optimizer": "adamw", "dtype": "float32", "elements": 2 * 10**6}
    adamw |= {"cpu_threads": 16, "cpu_gb_s": 90.0, "cuda_gb_s": 2500.0}
    pin = {"pages_by": "touch", "both_gb_s": 5.0}
    two = {"two/tiny/chameleon/1MB one": {"ms": 3.0}}
    two |= {"two/tiny/chameleon/1MB other": {"error": "out of memory: much"}}
    llama = {"native": [{"unstable": []}]}
    llama |= {"here": [{"compared": 9, "different": []}]}
    results = {
        "optimizer_ops": [adamw | {"are_bits_equal": False}],
        "pin": [pin | {"threads": 16}, pin | {"threads": 4}],
        "two": two,
        "bits": {"deterministic_llama": llama},
    }
    assert list(sentences(results)) == [
        "Fused adamw of 2 M float32 elements, state on the CPU (16 threads) "
        "beside CUDA's: other bits, 90 and 2500 GB/s.",
        "Host memory written, then pinned, GB/s by threads: 5.0 by 4, 5.0 by "
        "16.",
        "Two processes at a time, tiny chameleon 1MB each: 3 ms, out of "
        "memory.",
        "A Llama with deterministic algorithms: 0 results that do not repeat "
        "natively, 0 of 9 that differ here.",
    ]
    assert list(sentences({})) == []


def test_when_a_plan_is_settled(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    from settling import VARYING_STEPS, Settling

    def settled(times, trying=(), is_varying=False):
        """After each step, of which these numbers tried a plan."""
        watched, found = Settling(is_varying), []
        for number, ms in enumerate(times):
            watched.add(ms, number in trying)
            found.append(watched.is_settled)
        return found

    assert settled([100, 101, 99.5]) == [False, False, True]
    assert settled([100, 103, 100, 101, 100])[2:] == [False, False, True]
    assert not any(settled([100] * 5, trying=[2]))
    assert settled([100] * 6, trying=[2])[-1]
    varying = settled([1, 5] * VARYING_STEPS, is_varying=True)
    assert varying.index(True) == VARYING_STEPS - 1


def test_what_does_not_fit_is_left_out_with_the_sum(tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, ROOT / "tests/gpu/lease.py", "--on", "cpu"),
            *("--seconds", "60", "--out", tmp_path),
            "llama_20b/chameleon/0.2MB",
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CHAMELEON_HOST_BUDGET": "200KiB"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = "not here: parameters, gradients and AdamW's state are 0.00158 GB"
    assert f"left out: llama_20b/chameleon/0.2MB: {said}" in done.stdout


def test_what_runs_at_a_time(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    from profiled import covered, kind_of, overlap

    kernels, copies = [(0, 4), (2, 5), (9, 10)], [(4, 7), (8, 9.5)]
    assert covered(kernels) == 6
    assert overlap(copies, kernels) == 1.5
    assert covered([]) == overlap([], kernels) == 0
    names = ("Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pinned)")
    names += ("Memset (Device)", "ampere_sgemm_128x64_tn")
    kinds = ["in", "out", "inside", "kernels"]
    assert [kind_of(name) for name in names] == kinds
