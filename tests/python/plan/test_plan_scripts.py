"""Scripts that `plan` runs: what it says, and what they leave behind."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from plan_trials import BESIDE, LAYERS, run_plan, run_text, wait_until
from torch_chameleon import plan
from torch_chameleon.plan.process import ScriptError, run_script
from torch_chameleon.plan.run import Run

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


@pytest.mark.slow
def test_a_script_that_says_cuda(tmp_path):
    script, figures = tmp_path / "train.py", tmp_path / "plan.json"
    script.write_text(SCRIPT)
    done = run_plan(
        *("--gpu", "rtx3090", "--budget", "128MiB", "--steps", "4"),
        *("--table", "--json", str(figures)),
        *(str(script), "--width", "1536"),
    )
    assert done.returncode == 0, done.stderr
    assert "loss" not in done.stdout
    assert "plan: steps with room for everything" in done.stderr
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


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM])
def number(request):
    """A signal that children hear: shells let background jobs ignore some."""
    before = signal.signal(request.param, signal.default_int_handler)
    yield request.param
    signal.signal(request.param, before)


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
    assert process.returncode == 128 + number
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


HOST = """
import json, sys, torch
from torch import nn
if sys.argv[1] == "linear":
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8)))
    shape, fused = (2048, 1024), False
else:
    layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
    model = nn.TransformerEncoder(layer, 4)
    shape, fused = (8, 256, 256), True
model = model.to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
for step in range(20):
    model(torch.randn(*shape, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
if len(sys.argv) > 2:
    from torch_chameleon import profiler, swap_stats
    torch.cuda.synchronize()
    shown = {"peak": swap_stats()["peak_host_bytes"]}
    shown["settled"] = profiler.last_step()["host_bytes"]
    with open(sys.argv[2], "w") as file:
        json.dump(shown, file)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "budget"), [("linear", "100MiB"), ("encoder", "110MiB")]
)
def test_the_host_is_what_the_program_will_show(tmp_path, model, budget):
    """In the first steps and in a settled one, but for a block or two."""
    script = tmp_path / "train.py"
    script.write_text(HOST)
    planned, shown = tmp_path / "plan.json", tmp_path / "shown.json"
    limits = ("--gpu", "rtx3090", "--budget", budget, "--host", "8GiB")
    done = run_plan(*limits, "--json", str(planned), str(script), model)
    assert done.returncode == 0, done.stderr
    subprocess.run(
        [
            *(sys.executable, "-W", "ignore", "-m", "torch_chameleon", "run"),
            *("--budget", budget, str(script), model, str(shown)),
        ],
        env={
            **os.environ,
            "CHAMELEON_PHYSICAL_DEVICE": "simulated",
            "CHAMELEON_SIMULATED_GPU": "rtx3090",
            "CHAMELEON_HOST_BUDGET": "8GiB",
        },
        check=True,
        capture_output=True,
    )
    figures = json.loads(planned.read_text())
    program = json.loads(shown.read_text())
    assert figures["fits"] == "swapped"
    assert figures["peak_host_bytes"] == pytest.approx(program["peak"], 0.05)
    # The command does not wait until the last plan was tried.
    assert figures["host_bytes"] == pytest.approx(program["settled"], 0.2)
    assert "in a settled step" in done.stdout
