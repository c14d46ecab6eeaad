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
from torch_chameleon.plan import report
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
    assert plan.largest_op(trace) == ("a", 100 * MEGA)


def test_a_piece_of_lists_has_a_tensor_of_each(tmp_path):
    """One parameter with its gradient and two moments; and three of them."""
    name = "aten::_fused_adamw_"
    one = written(tmp_path, op("a", 1, 2, 3), op(name, *range(4)))
    assert plan.largest_op(one) == (name, 400 * MEGA)
    name = "aten::_foreach_mul_.List"
    three = written(tmp_path, op("a", 1), op(name, *range(6)))
    assert plan.largest_op(three) == (name, 200 * MEGA)


def test_curve_leaves_out_what_does_not_fit(trace):
    rows = plan.curve(trace, 200 * MEGA, 100 * MEGA)
    assert [row["k"] for row in rows] == [1.0]
    assert rows[0]["step_ns"] == 3 * MEGA


def test_a_trace_that_is_none_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="nothing.jsonl"):
        _C.what_if(str(tmp_path / "nothing.jsonl"), [], 1.0)


def test_profiles_have_names_and_memory():
    cards = {row["name"]: row["memory_bytes"] for row in _C.gpu_profiles()}
    assert cards["rtx4090"] == 24 << 30


@pytest.mark.parametrize(
    ("fits", "sentence"),
    [
        ("in memory", "yes, into 24.0 GiB"),
        ("no", "no, not into 24.0 GiB: the limit is 4 times; here it is 5.0"),
        ("swapped", "1.25 times what 24.0 GiB hold"),
    ],
)
def test_report_says_whether_it_fits(fits, sentence):
    k = {"in memory": 0.5, "no": 5, "swapped": 1.25}[fits]
    text = report.text_of(
        {
            "script": "train.py",
            "gpu": "rtx4090",
            "budget_bytes": 24 << 30,
            "memory_bytes": 24 << 30,
            "peak_bytes": int((24 << 30) * k),
            "largest_op": "aten::mm",
            "largest_op_bytes": 1 << 20,
            "in_memory_ns": 1e8,
            "link_bytes_per_s": 25e9,
            "fits": fits,
            "step_ns": 2e8,
            "bound_ns": 1.9e8,
            "stall_ns": 1e8,
            "bytes_in": 10**9,
            "bytes_out": 10**9,
            "host_bytes": 1 << 30,
            "link_factor": 2.0,
            "curve": [],
            "kept_away": {},
        }
    )
    assert sentence in text
    assert ("50 GB/s each way; this one has 25" in text) == (fits == "swapped")


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
    found = json.loads(figures.read_text())
    parameters = 6 * (1536 * 1536 + 1536) * 4
    assert found["peak_bytes"] > 4 * parameters  # gradients, two moments
    assert found["fits"] == "swapped"
    assert found["step_ns"] > found["in_memory_ns"]
    slowdowns = [row["step_ns"] for row in found["curve"]]
    assert slowdowns == sorted(slowdowns)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("raise ValueError('no data here')", "ValueError: no data here"),
        ("pass", "ended after 0 optimizer steps"),
    ],
)
def test_a_script_that_does_not_train(tmp_path, text, sentence):
    script = tmp_path / "train.py"
    script.write_text(text)
    done = run_plan(str(script))
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_missing():
    with pytest.raises(SystemExit, match="no file missing.py"):
        plan.main(["missing.py"])


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


def run_text(text, folder, **rest):
    """Runs a script in this folder, for two steps."""
    pathlib.Path("train.py").write_text(text)
    folder.mkdir()
    return run_script(
        Run(script="train.py", arguments=[], gpu="h200", steps=2, **rest),
        folder,
    )


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
    assert len(result["steps"]) == 2


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
        ("import sys; sys.exit(0)", "ended after 0 optimizer steps"),
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
    assert error == "torch_chameleon plan: interrupted\n"
    assert not list(temporary.iterdir())


def contents(folder):
    return {
        path.name: (path.read_text(), path.stat().st_mtime_ns)
        for path in sorted(folder.iterdir())
    }


def test_a_script_that_saves(saving, tmp_path):
    before = contents(saving)
    (tmp_path / "run").mkdir()
    run = Run(script="train.py", arguments=[], gpu="h200", steps=3)
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
