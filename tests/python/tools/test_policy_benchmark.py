"""The benchmark of policies: it repeats, and it cannot flatter."""

import json
import math
import os
import pathlib
import re
import subprocess
import sys

import pytest
import results
import run
import table
import yardsticks
from bound import Step

FOLDER = pathlib.Path(run.__file__).parent
KEY = {"workload": "small", "gpu": "h200", "k": 2.0}


def measured(policy="forecast", **figures):
    row = {**KEY, "policy": policy, "ms": 10.0, "in_gb": 3.0, "out_gb": 1.0}
    row |= {"bound_ms": 9.0, "belady_in_gb": 1.5, "belady_out_gb": 0.5}
    row |= {"steps_ms": [14.0, 9.0, 11.0, 10.0], "mean_of": 3, "alike": True}
    return row | {"day": "2026-11-25"} | figures


# ---- rows -------------------------------------------------------------------


def test_what_follows_from_the_figures():
    row = results.with_ratios(measured())
    assert row["bound/ours"] == 0.9
    assert row["bytes/belady"] == 2
    none_moved = measured(belady_in_gb=0.0, belady_out_gb=0.0)
    assert results.with_ratios(none_moved)["bytes/belady"] is None
    assert results.with_ratios({**KEY, "error": "x"}) == {**KEY, "error": "x"}


def test_when_steps_get_steady():
    def steps(*times, alike=True):
        row = measured(steps_ms=list(times), mean_of=2, alike=alike)
        row = results.with_ratios(row)
        return row["steps_to_steady"], pytest.approx(row["spread"])

    assert steps(10.0, 10.0, 10.0) == (0, 0)
    assert steps(20.0, 30.0, 10.4, 9.6, 10.0) == (2, 0.04)
    assert steps(10.0, 10.0, 11.0, 9.0) == (None, 0.2)
    assert steps(20.0, 10.0, 10.0, alike=False) == (None, 0)


def test_faster_than_its_bound_is_a_problem():
    assert results.problem(measured()) == ""
    assert results.problem(measured(bound_ms=10.0005)) == ""  # tolerance
    problem = results.problem(measured(bound_ms=10.002))
    assert problem == (
        "small on h200, k = 2, forecast: took 10.0 ms, less than its lower "
        "bound of 10.002 ms"
    )


def test_so_is_a_point_that_failed():
    row = {**KEY, "policy": "lru", "error": "RuntimeError: out of order"}
    assert "out of order" in results.problem(row)
    infeasible = {**KEY, "policy": "lru", "infeasible": True}
    assert results.problem(infeasible) == ""


@pytest.mark.parametrize("bound_ms", [9.0, 10.1])
def test_it_fails_the_run(bound_ms, tmp_path, monkeypatch):
    file = tmp_path / "results.jsonl"
    rows = [
        {**KEY, "k": 0.0, "policy": "lru", "ms": 5.0},
        measured("lru"),
        measured("forecast", bound_ms=bound_ms),
        {**KEY, "policy": "joint", "ms": 6.0},  # the bound is of swapping
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(run, "child", None)  # all points are there
    arguments = ["--workload", "small", "--gpu", "h200", "--k", "2"]
    monkeypatch.setattr(
        sys, "argv", ["run.py", *arguments, "--results", str(file)]
    )
    if bound_ms < 10:
        run.main()
    else:
        with pytest.raises(SystemExit, match="less than its lower bound"):
            run.main()
    assert len(file.read_text().splitlines()) == 4


def test_the_last_line_of_a_point_counts(tmp_path):
    kept = results.Results(tmp_path / "r")
    for ms in (1.0, 2.0 / 3):
        kept.add(measured(ms=ms))
    kept.add(measured("lru"))
    again = results.Results(tmp_path / "r")
    assert again.rows == kept.rows
    assert again.rows["small", "h200", 2.0, "forecast"]["ms"] == 0.666667
    again.put_in_order([results.key_of(measured("lru"))])
    lines = (tmp_path / "r").read_text().splitlines()
    assert [json.loads(line)["policy"] for line in lines] == ["lru", "forecast"]


# ---- yardsticks of an exported step -----------------------------------------


def op(dur_ns, reads=(), creates=(), writes=(), frees=(), **more):
    return {
        "op": "op",
        "dur_ns": dur_ns,
        "in": [[key, 4] for key in reads],
        "out": [[key, 4] for key in creates],
        "write": [*writes, *creates],
        "free": [*frees],
        **more,
    }


def test_what_lives_across_the_end_dies_there():
    # 7 is created last and read and freed first, in the step after.
    records = [op(1, [1, 7], frees=[7]), op(2, [1]), op(3, [1], [7])]
    closed = yardsticks.closed(records)
    assert closed[0]["in"] == [[1, 4]]
    assert closed[0]["free"] == []
    assert closed[2]["free"] == [7]
    step = Step.from_records(closed)
    assert step.peak_bytes == 8
    assert records[0]["free"] == [7]  # as it was


def test_overwritten_operands_and_workspaces_count():
    step = Step.from_records(
        [
            op(1, [1, 2], writes=[1], over=[1], workspace=100),
            op(1, [1, 2]),
        ]
    )
    assert step.storages[0].reads == [False, True]
    assert step.storages[0].writes == [True, False]
    assert step.operand_bytes.tolist() == [108, 8]
    assert step.peak_bytes == 108


def test_equal_traces_are_calculated_once_and_means_are_of_all(tmp_path):
    texts = []
    for scale in (1, 2):
        ops = [op(1000 * scale, [key]) for key in range(4)]
        texts.append("\n".join(map(json.dumps, ops)))
    files = []
    for number, text in enumerate([texts[0], texts[0], texts[1]]):
        files.append(str(tmp_path / f"{number}"))
        pathlib.Path(files[-1]).write_text(text)
    made = yardsticks.yardsticks(files, "h200", 100)
    assert made["bound_ms"] == pytest.approx((4 + 4 + 8) / 3 / 1000)
    assert made["trace_ops"] == 4
    assert made["belady_in_gb"] == 0


# ---- a run ------------------------------------------------------------------


def benchmark(file, *arguments):
    command = [sys.executable, FOLDER / "run.py", "--results", file]
    done = subprocess.run(
        [*command, "--workload", "small", "--gpu", "rtx4090", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return re.sub('"day":"[^"]*"', '"day":"any"', file.read_text())


@pytest.mark.slow
def test_it_repeats_to_the_last_digit(tmp_path):
    first = benchmark(tmp_path / "1", "--k", "2")
    assert benchmark(tmp_path / "2", "--k", "2", "--jobs", "2") == first
    unlimited, *rows = map(json.loads, first.splitlines())
    assert unlimited["k"] == 0
    assert {row["policy"] for row in rows} == set(run.POLICIES)
    for row in rows:
        assert row["peak_bytes"] <= row["budget"]
        if row["policy"] == "joint":
            continue  # yardsticks are of swapping
        assert 0 < row["bound/ours"] <= 1
        # The trace is the step that ran: its ops' times, and its memory.
        assert math.isclose(
            row["trace_compute_ms"], row["compute_ms"], rel_tol=1e-4
        )
        peak_gb = unlimited["peak_bytes"] / 1e9
        assert math.isclose(row["trace_peak_gb"], peak_gb, rel_tol=1e-5)
    # What is there is not run again; what is missing is.
    lines = first.splitlines(keepends=True)
    (tmp_path / "2").write_text("".join(lines[:-1]))
    assert benchmark(tmp_path / "2", "--k", "2") == first


# ---- the table --------------------------------------------------------------


def test_table_and_plot(tmp_path):
    kept = results.Results(tmp_path / "r")
    kept.add({**KEY, "k": 0.0, "policy": "lru", "ms": 5.0})
    for policy in ("lru", "forecast"):
        figures = {"compute_ms": 5.0, "stall_share": 0.5, "faults": 7.0}
        kept.add(results.with_ratios(measured(policy, **figures)))
    kept.add({**KEY, "k": 4.0, "policy": "lru", "infeasible": True})
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    for _ in "12":
        table.write(kept, readme)
        text = readme.read_text()
        assert text.startswith("before\n" + table.BEGIN)
        assert text.endswith(table.END + "\nafter\n")
        assert "old" not in text
        assert "modelled" in text
        assert "| small | 2 | 5.0 | 9.0 | 10.0 |" in text
        assert "**0.900**" in text
        assert "| 2026-11-25 |" in text
        assert "one op alone needs more" in text
        lines = [line for line in text.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) == 1
    plot = (tmp_path / table.PLOT).read_bytes()
    table.write(kept, readme)
    assert (tmp_path / table.PLOT).read_bytes() == plot
    assert len(plot) < 200_000


def test_what_the_pages_say_is_not_stale():
    kept = results.Results(results.RESULTS)
    for page, body in (
        (table.PAGE, table.markdown(kept)),
        (table.README, table.summary(kept)),
    ):
        shown = page.read_text().split(table.BEGIN)[1].split(table.END)[0]
        assert shown.strip() == body.strip(), "table.py writes it"
