"""`torch_chameleon.watch`: a line a step, and scalars."""

import io
import math
import subprocess
import sys

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


def test_a_log_has_the_first_step_and_the_last():
    file = io.StringIO()
    with torch_chameleon.watch(file=file) as live:
        run_steps(3)
    assert live.steps == 3
    lines = file.getvalue().splitlines()
    assert [line.split(", ")[0] for line in lines] == ["step 1", "step 3"]
    assert "HBM " in lines[0]


def test_a_line_for_each_step_where_that_is_asked_for():
    file = io.StringIO()
    with torch_chameleon.watch(file=file, interval_s=0):
        run_steps(3)
        assert len(file.getvalue().splitlines()) == 3  # not at the end alone
    lines = file.getvalue().splitlines()
    assert [line.split(", ")[0] for line in lines] == [
        *("step 1", "step 2", "step 3")
    ]


def test_no_lines_where_only_a_writer_wants_them():
    file = io.StringIO()
    writer = Scalars()
    with torch_chameleon.watch(writer, file=file, interval_s=math.inf):
        run_steps(2)
    assert file.getvalue() == ""
    assert writer.rows


def test_a_pipe_gets_lines_at_once():
    code = (
        "import torch, torch_chameleon\n"
        "x = torch.ones(4, device='chameleon')\n"
        "with torch_chameleon.watch(interval_s=0):\n"
        "    x + 1\n"
        "    torch_chameleon.step()\n"
        "    input()\n"  # the line has to be there by now
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr.readline().startswith("step 1, ")
        process.communicate("go on\n")
    assert process.returncode == 0


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
    with torch_chameleon.watch(file=file, interval_s=1e9) as live:
        run_steps(5)
        assert len(file.getvalue().splitlines()) == 1
    assert live.steps == 5


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


def figures_with(**changes):
    names = _watch.figures_of(*[torch_chameleon.swap_stats()] * 2, 1.0)
    return dict.fromkeys(names, 0.0) | changes


def test_a_line_has_what_happened():
    figures = figures_with(
        step_s=0.5,
        stall_s=0.1,
        forecast_share=0.9,
        forecast_misses=3,
        resident_bytes=1.5 * MIB,
        hbm_budget=2 * MIB,
        rerun_ops=3,
        bytes_in=MIB,
    )
    assert _watch.line_of(7, figures, 120, True) == (
        "step 7, 0.5 s, HBM 1.5/2 MiB, waited 20%, in/out 1/0 MiB, host 0 B, "
        "re-ran 3 ops, 10% unforeseen"
    )


def test_a_line_fits_and_what_matters_least_is_left_out():
    big = figures_with(
        step_s=1234.5,
        stall_s=700,
        forecast_share=0.5,
        forecast_misses=500,
        resident_bytes=140.7 * 2**30,
        hbm_budget=141.4 * 2**30,
        bytes_in=512.3 * 2**30,
        bytes_out=511.9 * 2**30,
        host_bytes=1.26 * 2**40,
        rerun_ops=12345,
    )
    whole = _watch.line_of(123456, big, 1000, True)
    for columns in range(13, 140):
        line = _watch.line_of(123456, big, columns, True)
        assert len(line) <= columns
        assert set(line.split(", ")) <= set(whole.split(", "))
    line = _watch.line_of(123456, big, 79, True)
    assert line == (
        "step 123456, 1.23e+03 s, HBM 141/141 GiB, waited 57%, "
        "in/out 512/512 GiB"
    )


def test_sizes_have_three_digits_and_one_unit():
    assert _watch._sizes("/", 0, 0) == "0/0 B"
    assert _watch._sizes("", 999) == "999 B"
    assert _watch._sizes("", 1000) == "0.977 KiB"
    assert _watch._sizes("/", 2**20, 2**30) == "0.000977/1 GiB"
    assert _watch._sizes("", 99.6 * 2**30) == "100 GiB"
    assert _watch._sizes("", 2**60) == "1048576 TiB"


def test_no_alarm_while_steps_are_learned():
    first = figures_with(step_s=1.0, forecast_misses=100)
    line = _watch.line_of(1, first, 79, False)
    assert "learning" in line
    assert "unforeseen" not in line
    idle = figures_with(step_s=1.0)  # a step without ops
    assert "unforeseen" not in _watch.line_of(9, idle, 79, True)


def test_learning_ends_with_the_first_step_that_was_expected():
    x = torch.ones(64, device="chameleon")

    def step():
        y = x * 2
        for _ in range(11):
            y = torch.sinh(y * 3)
        torch_chameleon.step()

    file = io.StringIO()
    with torch_chameleon.watch(file=file, interval_s=0):
        for _ in range(6):
            step()
    lines = file.getvalue().splitlines()
    assert "learning" in lines[0]
    assert "learning" not in lines[-1]
    assert "unforeseen" not in "".join(lines)
