"""python -m torch_chameleon plan."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from torch_chameleon import _C, plan
from torch_chameleon.plan import arguments, machine, planner, report, steps
from torch_chameleon.plan.process import ScriptError, run_script
from torch_chameleon.plan.script import Run

MEGA = 1_000_000
HEADER = {
    "trace": 1,
    "name": "hand",
    "hbm_budget": 0,
    "bw_in": 5e10,
    "bw_out": 5e10,
    "bw_both": 9e10,
    "copy_latency_ns": 0,
}
# Says nothing of chameleon, uses what training scripts use.
SCRIPT = """
import argparse, torch
from torch import nn
reader = argparse.ArgumentParser()
reader.add_argument("--width", type=int, default=1024)
width = reader.parse_args().width
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.cuda.manual_seed_all(0)
model = nn.Sequential(*(nn.Linear(width, width) for _ in range(6))).to(device)
data = torch.utils.data.TensorDataset(torch.randn(4096, width))
loader = torch.utils.data.DataLoader(data, batch_size=512, pin_memory=True,
                                     num_workers=2)
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")
for epoch in range(100):
    for (x,) in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x.cuda(non_blocking=True)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert x.cuda().is_cuda
        print("loss", loss.item(), torch.cuda.max_memory_allocated())
"""


def op(name: str, *storages: int, size: int = 100 * MEGA) -> dict[str, Any]:
    return {
        "op": name,
        "t": 0,
        "dur_ns": MEGA,
        "in": [[each, size] for each in storages],
        "out": [],
        "write": [],
        "free": [],
    }


def written(folder: pathlib.Path, *ops: dict[str, Any]) -> str:
    file = folder / "trace.jsonl"
    lines = [HEADER, *ops, {"step": 1}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(file)


@pytest.fixture
def trace(tmp_path: pathlib.Path) -> str:
    return written(
        tmp_path, op("a", 1), op("aten::_foreach_x", 1, 2), op("b", 2)
    )


def test_lists_are_no_largest_op(trace):
    assert planner.largest_op(trace) == ("a", 100 * MEGA)


def test_a_piece_of_lists_has_a_tensor_of_each(tmp_path):
    """One parameter with its gradient and two moments; and three of them."""
    name = "aten::_fused_adamw_"
    one = written(tmp_path, op("a", 1, 2, 3), op(name, *range(4)))
    assert planner.largest_op(one) == (name, 400 * MEGA)
    name = "aten::_foreach_mul_.List"
    three = written(tmp_path, op("a", 1), op(name, *range(6)))
    assert planner.largest_op(three) == (name, 200 * MEGA)


def test_swapping_alone_is_the_planner_s_model(trace):
    assert planner.swapping_ns(trace, 200 * MEGA) == 3 * MEGA
    assert planner.swapping_ns(trace, 10 * MEGA) is None
    assert planner.swapping_ns(trace, None) is None


def test_a_trace_that_is_none_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a long path is not quoted to its end
    with pytest.raises(ValueError, match="nothing.jsonl"):
        _C.what_if("nothing.jsonl", [], 1.0)


def test_profiles_have_names_and_memory():
    cards = {row["name"]: row["memory_bytes"] for row in _C.gpu_profiles()}
    assert cards["rtx4090"] == 24 << 30


FIGURES = {
    "script": "train.py",
    "gpu": "rtx4090",
    "budget_bytes": 24 << 30,
    "budget_is_given": True,
    "memory_bytes": 24 << 30,
    "host_budget_bytes": 64 << 30,
    "host_source": "--host",
    "peak_bytes": 30 << 30,
    "least_budget_bytes": 7680 << 20,
    "largest_op": "aten::mm",
    "largest_op_bytes": 1 << 20,
    "in_memory_ns": 1e8,
    "step_ns": 2e8,
    "swapping_ns": 3e8,
    "stall_ns": 1e8,
    "bytes_in": 10**9,
    "bytes_out": 10**9,
    "host_bytes": 1 << 30,
    "settled": True,
    "steps": 8,
    "trust": {"sentence": "are modelled; for transformers"},
    "curve": [],
    "reads": [],
    "kept_away": {},
}


@pytest.mark.parametrize(
    ("figures", "sentence"),
    [
        ({"fits": "in memory"}, "yes, 24.0 GiB hold all of it"),
        ({"fits": "in memory"}, "times      are modelled; for transformers"),
        ({"fits": "swapped"}, "a step takes 2.00 times its time in memory"),
        (
            {"fits": "no", "why": "budget"},
            "no, not into 24.0 GiB: it needs 7.50 GiB, a quarter of its peak",
        ),
        (
            {"fits": "no", "why": "host", "host_bytes": 99 << 30},
            "no, the host is too small: it needs 99.0 GiB, and has 64.0 GiB "
            "(--host)",
        ),
        (
            {"fits": "swapped", "settled": False, "steps": 3},
            "the script made only 3 steps",
        ),
        (
            {"fits": "swapped", "reads": ["train.py:7"]},
            "1 or False was read at train.py:7",
        ),
    ],
)
def test_the_report_answers(figures, sentence):
    assert sentence in report.text_of(FIGURES | figures)


def test_answers_fit_a_terminal():
    figures = FIGURES | {"fits": "swapped", "reads": ["train.py:7"] * 9}
    wrapped = report.text_of(figures, 80)
    assert max(map(len, wrapped.splitlines())) <= 80
    whole = report.text_of(figures)
    assert wrapped.split() == whole.split()


def test_the_help_fits_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        arguments.parse(["--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_units_that_read_well():
    assert report.duration(15.5e9) == "15.5 s"
    assert report.duration(1_018_000) == "1.02 ms"
    assert report.duration(999_900) == "1.00 ms"
    assert report.decimal(64e6) == "64.0 MB"
    assert report.size(60 << 20) == "60.0 MiB"
    assert report.size(0) == "0 bytes"


def test_less_memory_is_never_faster():
    figures = FIGURES | {"fits": "swapped", "budget_bytes": 20, "step_ns": 3e8}
    rows = [
        {"budget_bytes": 10, "step_ns": 2e8, "swapping_ns": None},
        {"budget_bytes": 30, "step_ns": 9e7, "swapping_ns": 9e7},
    ]
    planner._order(figures, rows)
    assert [row["step_ns"] for row in rows] == [1e8, 3e8]
    assert [row["swapping_ns"] for row in rows] == [1e8, None]
    assert figures["step_ns"] == 3e8


def test_swapping_alone_is_no_faster_than_what_ships():
    figures = FIGURES | {"fits": "in memory"}
    rows = [{"budget_bytes": 10, "step_ns": 3e8, "swapping_ns": 2e8}]
    planner._order(figures, rows)
    assert rows[0]["swapping_ns"] == 3e8


def point_of(budget: int, step: int, moved: int = 9) -> dict[str, Any]:
    names = ("stall_ns", "bound_ns", "swapping_ns", "settled", "steps")
    return dict.fromkeys(names, 0) | {
        "budget": budget,
        "duration_ns": step,
        "bytes_in": moved,
        "bytes_out": moved,
        "peak_host_bytes": 5 << 30,
    }


def test_cards_say_what_the_answer_says(monkeypatch, tmp_path):
    """Of the same card; what swaps, what has no host, what is too small."""
    (tmp_path / "train.py").write_text("")
    options = arguments.parse(["--gpu", "l4", str(tmp_path / "train.py")])
    found = planner.Planner(options, tmp_path)
    found.peak, found.op_bytes = 20 << 30, 13 << 30

    def points(gpu, budgets, has_host=True):
        assert gpu != "l4"  # it has been asked about
        small = gpu == "rtx3090" and has_host
        moved = 9 if gpu == "rtx4090" else 0
        last = None if small else point_of(budgets[-1], 300, moved)
        return [point_of(0, 100), last][: len(budgets)]

    monkeypatch.setattr(found, "_points", points)
    answer = {
        "gpu": "l4",
        "budget_bytes": machine.default_budget(
            _C.gpu_profile("l4")["memory_bytes"]
        ),
        "in_memory_ns": 617,
        "fits": "swapped",
        "step_ns": 634,
    }
    rows = {row["gpu"]: row for row in found.cards(answer)}
    names = ("in_memory_ns", "step_ns", "fits", "why")
    assert {
        name: tuple(rows[name][each] for each in names)
        for name in ("t4", "l4", "rtx4090", "rtx3090", "a10", "h200")
    } == {
        "t4": (100, None, "no", "budget"),
        "l4": (617, 634, "swapped", None),
        "rtx4090": (100, 300, "swapped", None),  # its peak just fits
        "rtx3090": (100, None, "no", "host"),
        "a10": (100, 100, "in memory", None),
        "h200": (100, 100, "in memory", None),
    }
    text = report.text_of(
        FIGURES | {"fits": "in memory", "cards": [*rows.values()]}
    )
    assert "617 ns  634 ns            1.03" in text
    assert "100 ns       -  host too small" in text


@pytest.mark.slow
@pytest.mark.parametrize("fits", ["swapped", "in memory", "no"])
def test_the_plot_has_the_whole_curve(tmp_path, fits):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from torch_chameleon.plan.plot import write_plot

    row = {"budget_bytes": 20 << 30, "step_ns": 2e8, "swapping_ns": None}
    figures = FIGURES | {"fits": fits, "why": "budget", "curve": [row]}
    write_plot(tmp_path / "plan.svg", figures)
    assert "</svg>" in (tmp_path / "plan.svg").read_text()


def step_of(ops: int, duration: float, plan: int = 1) -> dict[str, Any]:
    return {
        "ops": ops,
        "duration_ns": duration,
        "bytes_in": 5,
        "bytes_out": 5,
        "plan": {"actions": plan, "modelled_duration_ns": 1},
    }


def test_a_validation_pass_is_no_step():
    found = [step_of(12, 90), *(step_of(10, 50) for _ in range(2))]
    found += [step_of(30, 120), step_of(10, 52)]
    assert steps.figures_of(found)["duration_ns"] == 50
    assert not steps.are_enough(found[:2], 8)  # one is no comparison
    assert steps.are_enough(found[:3], 8)
    assert not steps.are_enough(found[:4], 4)  # it ends with the other kind
    assert steps.are_enough(found, 4)


@pytest.mark.parametrize(("before", "now"), [(0, 0), (0, 3), (2, 3)])
def test_steps_are_compared_when_there_is_a_plan(before, now):
    found = [step_of(12, 90), step_of(10, 50, before), step_of(10, 50, now)]
    assert not steps.are_enough(found, 8)
    assert steps.are_enough([*found, step_of(10, 50, 3)], 8) == (now == 3)


def test_a_card_gives_what_cuda_takes():
    """Of an H100 with nothing else on it: measured."""
    assert abs(machine.default_budget(80 << 30) / 2**30 - 70.80) < 0.1


def test_the_host_is_this_machine_s_or_the_card_s():
    total = _C.machine_memory_bytes()
    assert machine.default_host("t4") == (
        int(total * 0.8),
        "80 % of this machine's",
    )
    given = machine.default_host("base=t4, host_memory=10GiB")
    assert given == (8 << 30, "80 % of its host's")


@pytest.mark.parametrize("gpu", ["t4", "base=t4, memory=8GiB, name=mine"])
def test_a_run_has_room_on_any_card(gpu):
    profile = _C.gpu_profile(machine.with_room(gpu))
    assert profile["memory_bytes"] == profile["host_memory_bytes"] == 2 << 40
    assert profile["name"] == ("t4" if gpu == "t4" else "mine")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--budget", "16"], '"16" has no unit: say "16GiB"'),
        (["--budget", "0"], '"0" is no room for anything'),
        (["--budget", "1.5.2"], "1.5.2"),
        (["--budget", "20KiB"], "less than 1 MiB"),
        (["--host", "much"], "much"),
        (["--steps", "one"], "must be a number, 2 or more"),
        (["--gpu", "h300"], "--gpu = 'h300' must be one of h200, h100"),
        (["--plot", "nowhere/plan.png"], "there is no folder nowhere"),
        (["--plot", "plan.xyz"], "no picture ends so"),
        (["--json", "/proc/x.json"], "/proc is not writable"),
        (["--budget", "16777216"], 'say "16MiB"'),
        (["--gpu", "rtx4090", "--budget", "100GiB"], "than rtx4090 has, 24"),
        (["--json", "."], "is a folder, not a file"),
        (["--gpus", "t4"], "train.py"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(
    tmp_path, monkeypatch, capsys, given, sentence
):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("train.py").write_text("")
    with pytest.raises(SystemExit) as left:
        arguments.parse([*given, "train.py"])
    error = capsys.readouterr().err
    assert left.value.code == 2
    assert error.startswith("torch_chameleon plan: ")
    assert error.count("\n") == 1
    if given[0] != "--gpus":
        assert sentence in error


def test_sizes_and_the_card_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("train.py").write_text("")
    monkeypatch.setenv("CHAMELEON_SIMULATED_GPU", "base=l4, memory=20GiB")
    options = arguments.parse(
        ["--budget", "1.5GiB", "--host", "3GiB", "train.py", "--lr", "1"]
    )
    assert (options.budget, options.host) == (3 << 29, 3 << 30)
    assert options.gpu == "base=l4, memory=20GiB"
    assert options.arguments == ["--lr", "1"]


def test_the_budgets_of_the_environment(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("")
    monkeypatch.setenv("CHAMELEON_HBM_BUDGET", str(3 << 29))
    monkeypatch.setenv("CHAMELEON_HOST_BUDGET", "3GiB")
    options = arguments.parse(["--gpu", "RTX4090", str(tmp_path / "train.py")])
    assert (options.budget, options.host) == (3 << 29, 3 << 30)
    assert options.gpu == "rtx4090"


def test_our_options_behind_the_script_are_pointed_out(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text('add("--steps"); add("--budget-of-time")')
    arguments.parse([str(script), "--steps", "9", "--budget=16GiB"])
    assert capsys.readouterr().err == (
        f"torch_chameleon plan: --budget stands behind {script} and goes to "
        "the script; for us it stands before it\n"
    )


def run_plan(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torch_chameleon", "plan", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_script_that_says_cuda(tmp_path):
    script, figures = tmp_path / "train.py", tmp_path / "plan.json"
    script.write_text(SCRIPT)
    done = run_plan(
        *("--gpu", "rtx3090", "--budget", "128MiB", "--steps", "4"),
        *("--json", str(figures), str(script), "--width", "1536"),
    )
    assert done.returncode == 0, done.stderr
    assert "loss" not in done.stdout
    assert "plan: a step with room for everything" in done.stderr
    found = json.loads(figures.read_text())
    parameters = 6 * (1536 * 1536 + 1536) * 4
    assert found["peak_bytes"] > 4 * parameters  # gradients, two moments
    assert found["fits"] == "swapped"
    assert found["step_ns"] > found["in_memory_ns"]
    points = sorted(
        [*found["curve"], found], key=lambda point: -point["budget_bytes"]
    )
    times = [point["step_ns"] for point in points]
    assert times == sorted(times)
    assert found["reads"] == ["train.py:24"]  # GradScaler's are torch's own


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("raise ValueError('no data here')", "ValueError: no data here"),
        ("pass", "ended after 0 steps"),
    ],
)
def test_a_script_that_does_not_train(tmp_path, text, sentence):
    script = tmp_path / "train.py"
    script.write_text(text)
    done = run_plan(str(script))
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_missing(capsys):
    with pytest.raises(SystemExit):
        plan.main(["missing.py"])
    assert "no file missing.py" in capsys.readouterr().err


@pytest.mark.slow
def test_what_the_script_sets_for_itself_does_not_count(tmp_path):
    """A script for this device: the plan asks about other budgets than its."""
    script, figures = tmp_path / "train.py", tmp_path / "plan.json"
    script.write_text("""
import torch, torch_chameleon
torch_chameleon.config.physical_device = "cpu"
torch_chameleon.config.hbm_budget = "1MiB"
model = torch.nn.Linear(1024, 1024).to("chameleon")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(9):
    with torch_chameleon.config.patch(oversubscription=1.0):
        model(torch.ones(8, 1024, device="chameleon")).sum().backward()
        optimizer.step()
""")
    done = run_plan("--json", str(figures), str(script))
    assert done.returncode == 0, done.stderr
    found = json.loads(figures.read_text())
    assert found["fits"] == "in memory"
    assert found["peak_bytes"] > 4 * 4 * 1024 * 1024


# Saves as scripts do, and reads what it saved.
SAVING_SCRIPT = """
import os, pathlib, shutil
import safetensors.torch, torch
net = torch.nn.Linear(64, 64).to("cuda")
optimizer = torch.optim.SGD(net.parameters())
assert pathlib.Path("best.pt").read_text() == "precious"
os.makedirs("runs", exist_ok=True)
for step in range(9):
    net(torch.ones(2, 64, device="cuda")).sum().backward()
    optimizer.step()
    torch.save(net.state_dict(), "runs/last.pt")
    shutil.copy("runs/last.pt", "best.pt")
    safetensors.torch.save_file(net.state_dict(), "net.safetensors")
    with open("log.txt", "a") as log:
        log.write("step\\n")
    assert len(torch.load("best.pt", map_location="cuda")) == 2
    assert open("log.txt").read().count("step") == step + 1
    pathlib.Path("old.txt").unlink(missing_ok=True)
"""


@pytest.fixture
def saving(tmp_path, monkeypatch):
    """A folder with the script and files that it would overwrite."""
    folder = tmp_path / "user"
    folder.mkdir()
    for name in ("best.pt", "old.txt"):
        (folder / name).write_text("precious")
    (folder / "train.py").write_text(SAVING_SCRIPT)
    monkeypatch.chdir(folder)
    return folder


def wait_until(happened):
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)


def run_text(text, folder, **given):
    """Runs a script in this folder, for two steps with room for all."""
    pathlib.Path("train.py").write_text(text)
    folder.mkdir()
    usual = {"gpu": "h200", "budgets": [None], "steps": 2}
    return run_script(
        Run(script="train.py", arguments=[], **(usual | given)), folder
    )


# Eight layers of a width, trained with AdamW.
LAYERS = """
import torch
from torch import nn
net = nn.Sequential(*(nn.Linear({0}, {0}) for _ in range(8))).to("cuda")
optimizer = torch.optim.AdamW(net.parameters())
for step in range(99):
    optimizer.zero_grad()
    net(torch.ones(64, {0}, device="cuda")).sum().backward()
    optimizer.step()
"""


# A training of two steps, and what scripts do beside it.
BESIDE = """
import os, subprocess, sys, torch
{}
net = torch.nn.Linear(8, 8).to("cuda")
optimizer = torch.optim.SGD(net.parameters())
for step in range(2):
    net(torch.ones(2, 8, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "text",
    [
        "subprocess.Popen(['sleep', '600'])",
        "os.write(1, b'\\xff\\n'); os.write(2, b'\\xff\\n')",
        "subprocess.Popen('while :; do echo noise; done', shell=True)",
    ],
)
def test_what_a_script_prints_and_leaves_running(saving, tmp_path, text):
    result = run_text(BESIDE.format(text), tmp_path / "run")
    assert result["points"][0]["steps"] == 2


@pytest.mark.skipif(
    not pathlib.Path("/proc/self/stat").exists(), reason="asks /proc"
)
def test_what_a_script_started_ends_with_it(saving, tmp_path):
    started = tmp_path / "run" / "started"
    text = f"""
child = subprocess.Popen(["sleep", "600"])
open({str(started)!r}, "w").write(str(child.pid))
"""
    run_text(BESIDE.format(text), tmp_path / "run")
    status = pathlib.Path(f"/proc/{started.read_text()}/stat")
    # Whoever inherits it may not have looked at it yet.
    wait_until(lambda: not status.exists() or ") Z " in status.read_text())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import sys; sys.exit(0)", "ended after 0 steps"),
        ("import os; os._exit(0)", "ended its process before it had trained"),
        ("import os; os.write(2, b'\\xff'); 1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_script_that_ends_early(saving, tmp_path, text, sentence):
    with pytest.raises(ScriptError, match=sentence):
        run_text(text, tmp_path / "run")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_behind(saving, tmp_path, number):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    pathlib.Path("train.py").write_text(
        "import tempfile, time; tempfile.mkstemp(); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-m", "torch_chameleon", "plan", "train.py"],
        env=os.environ | {"TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_until(lambda: any(temporary.glob("*/*/tmp/*")))
        process.send_signal(number)
        error = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert error.splitlines()[-1] == "torch_chameleon plan: interrupted"
    assert not list(temporary.iterdir())


def contents(folder):
    return {
        path.name: (path.read_text(), path.stat().st_mtime_ns)
        for path in sorted(folder.iterdir())
    }


def test_a_script_that_saves(saving, tmp_path):
    before = contents(saving)
    (tmp_path / "run").mkdir()
    run = Run(
        script="train.py", arguments=[], gpu="h200", budgets=[None], steps=3
    )
    result = run_script(run, tmp_path / "run")
    assert contents(saving) == before
    assert result["kept_away"] == {
        "written": [
            str(saving / name)
            for name in ("log.txt", "net.safetensors", "runs/last.pt")
        ],
        "changed": [str(saving / "best.pt")],
        "removed": [str(saving / "old.txt")],
    }


@pytest.mark.slow
def test_a_plan_of_a_script_that_saves(saving):
    before = contents(saving)
    done = run_plan("train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == (
        "Kept away, your files are as they were: 3 written (log.txt, "
        "net.safetensors, runs/last.pt), 1 changed (best.pt), 1 removed "
        "(old.txt)."
    )
    assert contents(saving) == before


def test_a_script_that_resumes(saving, tmp_path):
    """Values that do not exist can be divided by, as AdamW does."""
    text = """
import torch
net = torch.nn.Linear(8, 8).to("cuda")
optimizer = torch.optim.AdamW(net.parameters())
net(torch.ones(2, 8, device="cuda")).sum().backward()
optimizer.step()
torch.save(optimizer.state_dict(), "state.pt")
again = torch.optim.AdamW(net.parameters())
again.load_state_dict(torch.load("state.pt", map_location="cuda"))
for step in range(9):
    net(torch.ones(2, 8, device="cuda")).sum().backward()
    again.step()
"""
    result = run_text(text, tmp_path / "run")
    assert result["points"]
    assert result["reads"] == ["train.py:12"]


@pytest.mark.slow
def test_values_that_are_given_for_none(saving, tmp_path):
    text = """
x = torch.zeros(2, 3, device="cuda")
assert x.tolist() == [[1.0] * 3] * 2 and x.sum().item() == 1.0
assert int(x.long().sum()) == 1 and not (x == 0).all()
assert torch.zeros(2).tolist() == [0.0, 0.0]
"""
    assert run_text(BESIDE.format(text), tmp_path / "run")["points"]


def test_large_weights_are_made_on_the_device(saving, tmp_path):
    text = "assert torch.nn.Linear(1024, 1024).weight.device.type != 'cpu'"
    assert run_text(BESIDE.format(text), tmp_path / "run")["points"]


def test_what_stays_on_the_cpu_is_no_device_memory(saving, tmp_path):
    """A data set, and what is set up and dropped before training."""
    text = """
data = torch.randn(1024, 1024)
large = torch.nn.Linear(1024, 4096)
del large
loader = torch.utils.data.DataLoader(data, 512)
assert not data.is_cuda and next(iter(loader)).cuda().is_cuda
"""
    result = run_text(BESIDE.format(text), tmp_path / "run")
    assert result["points"][0]["peak_logical_bytes"] < 4096


@pytest.mark.slow
def test_distributions_do_not_check_values(saving, tmp_path):
    text = """
scores = torch.randn(4, 2, device="cuda").softmax(-1)
drawn = torch.distributions.Categorical(scores)
drawn.log_prob(drawn.sample())
"""
    assert run_text(BESIDE.format(text), tmp_path / "run")["points"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "torch.nn.Linear(1024, 1024)(torch.ones(2, 1024))",
            "trains on the CPU: it moves no module to the GPU",
        ),
        (
            "net = torch.nn.Linear(8, 8)"
            "\nsgd = torch.optim.SGD(net.parameters())"
            "\nwhile True: net(torch.ones(2, 8)).sum().backward(); sgd.step()"
            "\nreader.add_argument('--accel')",
            "trains on the CPU: SGD's parameters are there. Is it told to use "
            "the GPU, by --accel",
        ),
        (
            "torch.distributed.init_process_group('nccl')",
            "trains in several processes",
        ),
        (
            "import torch.multiprocessing as mp\nmp.spawn(print, nprocs=2)",
            "trains in several processes",
        ),
        (
            "if torch.ones(2, device='cuda').sum().item(): raise KeyError(3)",
            "read at train.py:3",
        ),
    ],
)
def test_what_no_plan_is_made_of(saving, tmp_path, text, sentence):
    with pytest.raises(ScriptError, match=sentence):
        run_text(BESIDE.format(text), tmp_path / "run")


@pytest.mark.slow
def test_an_evaluation_that_needs_values(saving, tmp_path):
    """What comes behind enough steps is not needed."""
    text = BESIDE.format("") + "\nraise IndexError('no such length')"
    result = run_text(text.replace("range(2)", "range(3)"), tmp_path / "run")
    assert result["points"][0]["steps"] == 2


@pytest.mark.slow
def test_a_training_without_an_optimizer(saving, tmp_path):
    text = """
import torch
net = torch.nn.Linear(64, 64).to("cuda")
for step in range(99):
    net(torch.ones(2, 64, device="cuda")).sum().backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= parameter.grad
"""
    assert run_text(text, tmp_path / "run")["points"]


@pytest.mark.slow
def test_one_run_goes_from_budget_to_budget(saving, tmp_path):
    budgets = [None, 24 << 20, 16 << 20]
    result = run_text(
        *(LAYERS.format(512), tmp_path / "run"),
        **{"gpu": "t4", "budgets": budgets, "steps": Run.steps},
    )
    roomy, *others = result["points"]
    assert roomy["bytes_in"] == roomy["bytes_out"] == 0
    assert all(point["bytes_in"] > 0 for point in others)
    assert roomy["duration_ns"] < min(each["duration_ns"] for each in others)


@pytest.mark.slow
def test_a_host_that_is_too_small(saving, tmp_path):
    pathlib.Path("train.py").write_text(LAYERS.format(1024))
    done = run_plan("--budget", "60MiB", "--host", "16MiB", "train.py")
    assert done.returncode == 1
    assert "no, the host is too small: it needs" in done.stdout
    assert "and has 16.0 MiB (--host)" in done.stdout
