"""Several ranks: each has files and lines of its own, and one table has all."""

import io
import json
import subprocess
import sys

import pytest
import torch
import torch_chameleon
from support import ROOT
from torch_chameleon import _ranks, doctor
from torch_chameleon._report import command, summary

SCRIPT = ROOT / "tests/integration/cuda_scripts/multigpu_torchrun.py"


@pytest.fixture
def of_rank(monkeypatch):
    """Makes this process one of several, as far as the environment says."""

    def become(rank, ranks=2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("LOCAL_RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", str(ranks))

    return become


def steps(count=3):
    x = torch.ones(1024, device="chameleon")
    for _ in range(count):
        x = x + 1
        torch_chameleon.step()


def test_files_do_not_collide(of_rank, monkeypatch):
    assert _ranks.path_of_rank("a/run.html") == "a/run.html"
    of_rank(0)
    assert _ranks.path_of_rank("a/run.html") == "a/run.html"
    of_rank(11, 16)
    assert _ranks.path_of_rank("a.b/run.html") == "a.b/run.rank11.html"
    assert _ranks.path_of_rank("run") == "run.rank11"


def test_each_rank_writes_and_one_table_has_all(of_rank, tmp_path, capsys):
    torch_chameleon.reset_swap_stats()
    steps()
    path = tmp_path / "run.json"
    for rank in range(2):
        of_rank(rank)
        torch_chameleon.report(path)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["run.json", "run.rank1.json"]
    row = json.loads(files[1].read_text())
    assert (row["rank"], row["ranks"], row["steps"]) == (1, 2, 3)
    stats = torch_chameleon.swap_stats()
    for name in ("hbm_budget", "bytes_in", "peak_logical_bytes"):
        assert row[name] == stats[name]
    assert command.main([str(files[1]), str(files[0])]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:3]] == [
        ["rank", "steps"],
        ["0", "3"],
        ["1", "3"],
    ]
    assert "2 of 2 ranks, 3 steps" in lines


def test_the_page_of_a_rank(of_rank, tmp_path):
    steps()
    of_rank(1)
    torch_chameleon.report(tmp_path / "run.html")
    page = (tmp_path / "run.rank1.html").read_text()
    assert page.startswith("<!doctype html>")
    assert not (tmp_path / "run.html").exists()


def row(rank, **changes):
    return {
        **{"kind": "torch_chameleon rank", "format": 1, "version": "0"},
        **{"rank": rank, "ranks": 2, "device": rank, "steps": 8},
        **{"physical_device": "cpu", "step_ns": 3e6, "waited_ns": 1e6},
        "collective_wait_ns": 5e5,
        **{"step_bytes_in": 4e6, "step_bytes_out": 2e6},
        **{"bytes_in": 32e6, "bytes_out": 16e6, "hbm_budget": 8 << 20},
        **{"peak_logical_bytes": 16 << 20, "peak_resident_bytes": 8 << 20},
        **changes,
    }


def test_the_slowest_and_the_largest_are_named():
    rows = [row(0), row(1, step_ns=5e6, steps=7, peak_logical_bytes=20 << 20)]
    assert summary.text_of(rows).splitlines() == [
        "rank  steps     step  for bytes  for ranks       in      out   run in"
        "  run out      peak    budget",
        "   0      8  3.00 ms    1.00 ms     500 us  4.00 MB  2.00 MB  32.0 MB"
        "  16.0 MB  16.0 MiB  8.00 MiB",
        "   1      7  5.00 ms    1.00 ms     500 us  4.00 MB  2.00 MB  32.0 MB"
        "  16.0 MB  20.0 MiB  8.00 MiB",
        "",
        "2 of 2 ranks, 7-8 steps",
        "slowest step: 5.00 ms, of rank 1",
        "moved by all: 64.0 MB in, 32.0 MB out",
        "largest peak: 20.0 MiB, of rank 1",
    ]


def test_modelled_times_are_called_so():
    rows = [row(0, physical_device="simulated")]
    assert summary.text_of(rows).endswith(
        "times are modelled: the device is simulated"
    )


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (["{}"], "a.json is no summary of a rank, which"),
        (["[1"], "a.json is no summary of a rank, which"),
        ([row(0), row(0)], "a.json and b.json are both of rank 0"),
        ([row(0), row(1, ranks=4)], "b.json is of a run with 4 ranks, a.json"),
        ([row(0, format=2)], "a.json was written by torch_chameleon 0, in a"),
        ([row(0), None], "b.json: No such file"),
    ],
)
def test_wrong_files_are_a_sentence(
    texts, sentence, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    names = ["a.json", "b.json"][: len(texts)]
    for name, text in zip(names, texts, strict=True):
        if text is not None:
            text = text if isinstance(text, str) else json.dumps(text)
            (tmp_path / name).write_text(text)
    with pytest.raises(SystemExit) as error:
        command.main(names)
    assert error.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"torch_chameleon report: {sentence}")
    assert said.count("\n") == 1


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_lines_of_a_rank_begin_with_it(of_rank):
    """Not rewritten in place: another rank's line may be there."""
    of_rank(1)
    file = Terminal()
    with torch_chameleon.watch(file=file, interval_s=0):
        steps(2)
    first, second = file.getvalue().splitlines()
    assert first.startswith("rank 1: step 1, ")
    assert second.startswith("rank 1: step 2, ")
    assert "\r" not in file.getvalue()


def test_the_doctor_names_peers(of_rank, monkeypatch):
    assert "no launcher" in str(doctor._distributed()["ranks"])
    of_rank(3, 4)
    monkeypatch.setattr(doctor._C, "local_ranks", lambda: (1, 2))
    facts = doctor._distributed()
    assert facts["rank"] == "3 of 4"
    assert facts["local rank"] == "1 of 2 on this machine"
    assert facts["device of this rank"] == "chameleon:0"


def test_the_doctor_names_the_backend(monkeypatch):
    assert "gloo" in str(doctor._distributed()["collectives"])
    monkeypatch.setattr(doctor._C, "chooses_cuda", lambda: True)
    monkeypatch.delattr(torch._C, "_nccl_version", raising=False)
    assert "without NCCL" in str(doctor._distributed()["collectives"])
    monkeypatch.setattr(torch._C, "_nccl_version", lambda: 0, raising=False)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    collectives = str(doctor._distributed()["collectives"])
    assert collectives.startswith("NCCL 2.28.9; gloo, of torch 2.")


@pytest.mark.slow
def test_ranks_of_torchrun(tmp_path):
    """Also one whose device is not its current one."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", "-m", "torch_chameleon", "run"),
            *("--budget", "2MiB", "--report", "run.json", str(SCRIPT)),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name in ("run.json", "run.rank1.json"):
        assert f"torch_chameleon: wrote {name}" in done.stderr
    rows = summary.read([str(path) for path in tmp_path.glob("run*.json")])
    assert [(each["rank"], each["device"]) for each in rows] == [(0, 0), (1, 1)]
    for each in rows:
        assert each["steps"] >= 4
        assert each["bytes_in"] > 0
        assert each["peak_resident_bytes"] <= each["hbm_budget"] == 2 << 20
