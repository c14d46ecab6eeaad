"""`torch_chameleon.watch`: a line a step, and scalars."""

import io

import pytest
import torch
import torch_chameleon
from support import MIB, evicting
from torch_chameleon import _steps, _watch


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Scalars:
    def __init__(self):
        self.rows = []

    def add_scalar(self, tag, scalar_value, global_step):
        self.rows.append((tag, scalar_value, global_step))


def run_steps(count, marked=True):
    x = torch.ones(MIB, dtype=torch.uint8, device="chameleon")
    for _ in range(count):
        x = x + 1
        if marked:
            torch_chameleon.step()
    return x


def test_nothing_where_there_is_no_terminal():
    file = io.StringIO()
    with torch_chameleon.watch(file=file) as live:
        run_steps(3)
    assert live.steps == 3
    assert file.getvalue() == ""


def test_lines_where_they_are_asked_for():
    file = io.StringIO()
    with torch_chameleon.watch(file=file, always=True, interval_s=0):
        run_steps(3)
    lines = file.getvalue().splitlines()
    assert [line.split(" | ")[0] for line in lines] == [
        *("step 1", "step 2", "step 3")
    ]
    assert "device " in lines[0]


def test_one_line_on_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    file = Terminal()
    with torch_chameleon.watch(file=file, interval_s=0):
        run_steps(3)
    text = file.getvalue()
    assert text.count("\r") == 3
    assert text.count("\n") == 1
    assert all(len(line) <= 39 for line in text.strip().split("\r"))


def test_not_more_often_than_asked():
    file = io.StringIO()
    with torch_chameleon.watch(file=file, always=True, interval_s=1e9) as live:
        run_steps(5)
    assert live.steps == 5
    assert len(file.getvalue().splitlines()) == 1


def test_scalars_are_the_counters_of_the_step():
    writer = Scalars()
    x = run_steps(1)
    with evicting("all"), torch_chameleon.watch(writer) as live:
        before = torch_chameleon.swap_stats()
        y = x + 1
        torch_chameleon.step()
        after = torch_chameleon.swap_stats()
    rows = {tag: value for tag, value, _ in writer.rows}
    assert {step for _, _, step in writer.rows} == {1}
    for name in ("bytes_in", "bytes_out", "faults"):
        assert rows[f"chameleon/{name}"] == after[name] - before[name]
    assert rows["chameleon/bytes_in"] >= MIB
    assert rows["chameleon/step_s"] == live.figures["step_s"] > 0
    del y


def test_tensorboard_takes_them(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    writer = tensorboard.SummaryWriter(tmp_path)
    with writer, torch_chameleon.watch(writer):
        run_steps(2)
    assert list(tmp_path.iterdir())


def test_an_optimizer_ends_a_step_where_nobody_marks_it(monkeypatch):
    monkeypatch.setattr(_steps, "_since_mark", _steps._UNMARKED)
    parameter = torch.nn.Parameter(torch.ones(4, device="chameleon"))
    optimizer = torch.optim.SGD([parameter])
    with torch_chameleon.watch() as live:
        for _ in range(3):
            parameter.square().sum().backward()
            optimizer.step()
        assert live.steps == 3
        torch_chameleon.step()  # of the same step
        assert live.steps == 3
        optimizer.step()
        assert live.steps == 3
        torch_chameleon.step()  # only these count now
        assert live.steps == 4
        for _ in range(_steps._UNMARKED + 1):  # until they end
            optimizer.step()
        assert live.steps == 5
    optimizer.step()
    assert live.steps == 5
    assert not _steps._listeners


def test_counters_that_were_reset_in_between():
    x = run_steps(1)
    with evicting("all"), torch_chameleon.watch() as live:
        y = x + 1
        torch_chameleon.reset_swap_stats()
        torch_chameleon.step()
    assert all(value >= 0 for value in live.figures.values())
    del y


def test_modelled_steps_take_modelled_time():
    before = torch_chameleon.swap_stats()
    after = before | {
        "compute_ns": before["compute_ns"] + 7 * 10**8,
        "stall_ns": before["stall_ns"] + 3 * 10**8,
    }
    assert _watch.figures_of(before, after, None)["step_s"] == 1.0


def test_a_line_has_what_happened():
    figures = dict.fromkeys(
        _watch.figures_of(*[torch_chameleon.swap_stats()] * 2, 1.0), 0.0
    )
    figures |= {"step_s": 0.5, "stall_s": 0.1, "forecast_share": 0.99}
    figures |= {"resident_bytes": MIB, "hbm_budget": 2 * MIB, "rerun_ops": 3}
    assert _watch.line_of(7, figures) == (
        "step 7 | 0.5 s | device 1.00 MiB of 2.00 MiB | host 0 B | in 0 B | "
        "out 0 B | waited 0.1 s | re-ran 3 ops | as forecast 99%"
    )
