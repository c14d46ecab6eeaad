"""`plan` of whole scripts: which steps count, what limits, what is left."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from plan_trials import BESIDE, LAYERS, run_plan, run_text, wait_until

PLAN = [sys.executable, "-m", "torch_chameleon", "plan"]
# Batches that differ; before some of them a pass over more, where asked.
VARIED = """
import random, torch
net = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(),
                          torch.nn.Linear(1024, 8)).to("cuda")
optimizer = torch.optim.Adam(net.parameters())
for rows in {0}:
    if rows < 0:
        with torch.no_grad():
            net(torch.ones(-rows, 256, device="cuda"))
        torch.cuda.reset_peak_memory_stats()
        rows = 16
    net(torch.ones(rows, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.reset_peak_memory_stats()
"""
SETS = "import torch_chameleon\ntorch_chameleon.config.oversubscription = {0}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder of the user's, where the scripts are."""
    made = tmp_path / "user"
    made.mkdir()
    monkeypatch.chdir(made)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "seen"),
    [
        ([50_000, *[16] * 19], 8),
        ([16, 50_000, *[16] * 18], 8),
        ([*[16] * 4, 50_000, *[16] * 15], 8),
        ([*[16] * 7, 50_000, *[16] * 12], 11),
        ([*[16] * 3, -100_000] * 5, 8),
    ],
)
def test_the_largest_step_counts(tmp_path, rows, seen):
    """Whichever it is, and whatever peaks the script resets."""
    result = run_text(VARIED.format(rows), tmp_path / "run", steps=8)
    point = result["points"][0]
    assert point["steps"] == seen
    assert point["peak_logical_bytes"] > 50_000 * 2 * 1024 * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "sentences"),
    [
        ("400MiB", ("no, not into 400 MiB: it needs", "_backward alone")),
        ("660MiB", ("by swapping", ", the longest 1.")),
        ("1GiB", ("yes, 1.00 GiB hold all of it",)),
    ],
)
def test_an_answer_is_of_all_steps(budget, sentences):
    rows = [*[16] * 4, 50_000, *[16] * 15]
    pathlib.Path("train.py").write_text(VARIED.format(rows))
    done = run_plan("--budget", budget, "train.py")
    for sentence in (*sentences, "8 seen, of 2 sizes", "the 5th took the most"):
        assert sentence in done.stdout
    assert done.returncode == ("no, " in done.stdout)


@pytest.mark.slow
def test_sizes_that_are_drawn_are_drawn_again():
    """So that steps within a budget are those with room."""
    drawn = "[random.randint(1, 9000) for step in range(99)]"
    layers = "torch.nn.ReLU(), *(torch.nn.Linear(1024, 1024) for _ in '12345'),"
    text = VARIED.replace("torch.nn.ReLU(),", layers)
    pathlib.Path("train.py").write_text(text.format(drawn))
    limits = ("--gpu", "t4", "--budget", "200MiB")
    done = run_plan(*limits, "--json", "plan.json", "train.py")
    assert "32 seen, of" in done.stdout
    assert "--steps 16 sees more" in done.stdout
    figures = json.loads(pathlib.Path("plan.json").read_text())
    assert figures["step_ns"] >= figures["in_memory_ns"]
    assert figures["longest_ns"] >= figures["seen"]["longest_ns"]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [2, 5])
def test_a_script_that_fails_half_way_is_no_yes(steps):
    fails = f"    if step == {steps - 1}: raise KeyError(7)\n"
    pathlib.Path("train.py").write_text(LAYERS.format(64) + fails)
    done = run_plan("train.py")
    assert done.returncode == 1
    assert (
        f"fits       not known: behind step {steps} the script failed with "
        f"train.py:10: KeyError: 7; --steps {steps} looks at those before it"
    ) in done.stdout
    done = run_plan("--steps", str(steps), "train.py")
    assert (done.returncode, "yes, " in done.stdout) == (0, True)


@pytest.mark.slow
def test_an_evaluation_that_fails_is_said():
    """It may need values, so the steps before it are an answer."""
    text = LAYERS.format(64).replace("range(99)", "range(3)")
    text += "def evaluate(): raise IndexError(7)\nevaluate()\n"
    pathlib.Path("train.py").write_text(text)
    done = run_plan("train.py")
    assert (done.returncode, "yes, " in done.stdout) == (0, True)
    said = "but        an evaluation behind step 3 failed with train.py:1"
    assert said in done.stdout


@pytest.mark.slow
def test_a_script_that_fails_in_its_second_step():
    text = LAYERS.format(64).replace(
        "optimizer.zero_grad()", "optimizer.zero_grad(); 1 / (1 - step)"
    )
    pathlib.Path("train.py").write_text(text)
    done = run_plan("train.py")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert not done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("way", ["variable", "option", "script", "none"])
def test_the_oversubscription_that_is_set(monkeypatch, way):
    """Its peak is 5 times the budget: more than the default allows."""
    text = LAYERS.format(512)
    given = ["--budget", "8MiB"]
    if way == "script":
        text = SETS.format(8) + text
    if way == "option":
        text = SETS.format(1) + text
        given += ["--oversubscription", "8"]
    if way == "variable":
        monkeypatch.setenv("CHAMELEON_OVERSUBSCRIPTION", "8")
    pathlib.Path("train.py").write_text(text)
    done = run_plan(*given, "train.py")
    if way == "none":
        assert done.returncode == 1
        assert "(the default of config.oversubscription)" in done.stdout
        assert "allows for that" in done.stdout
    else:
        assert done.returncode == 0, done.stdout + done.stderr
        assert "yes, by swapping" in done.stdout
    left_aside = "plan: the script sets oversubscription = 1, which plan"
    assert (left_aside in done.stderr) == (way == "option")


@pytest.mark.slow
def test_the_answer_comes_before_the_curve():
    pathlib.Path("train.py").write_text(LAYERS.format(512))
    text = subprocess.run(
        [*PLAN, "--table", "train.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    ).stdout
    order = [
        *("plan: answered after", "  fits       yes"),
        *("plan: steps within other budgets ...", "peak/budget"),
        "wrote no files",
    ]
    places = [text.index(each) for each in order]
    assert places == sorted(places)


@pytest.mark.slow
def test_whoever_reads_may_have_seen_enough():
    pathlib.Path("train.py").write_text(LAYERS.format(64))
    with subprocess.Popen(
        [*PLAN, "train.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()


@pytest.mark.slow
@pytest.mark.skipif(
    not pathlib.Path("/proc/self/stat").exists(), reason="asks /proc"
)
def test_what_a_killed_plan_left_is_removed(tmp_path):
    """Its script ends with it; a plan that is alive keeps its folder."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = os.environ | {"TMPDIR": str(temporary)}
    pathlib.Path("sleep.py").write_text(
        "import os, tempfile, time"
        "\nos.write(tempfile.mkstemp()[0], str(os.getpid()).encode())"
        "\ntime.sleep(600)"
    )
    pathlib.Path("train.py").write_text(BESIDE.format(""))

    def started():
        files = temporary.glob("*/*/tmp/*")
        return [int(file.read_text() or 0) for file in files]

    quiet = {"env": environment, "stderr": subprocess.DEVNULL}
    with (
        subprocess.Popen([*PLAN, "sleep.py"], **quiet) as killed,
        subprocess.Popen([*PLAN, "sleep.py"], **quiet) as alive,
    ):
        try:
            wait_until(lambda: len(started()) == 2 and all(started()))
            scripts = started()
            killed.kill()
            killed.wait()
            wait_until(lambda: sum(map(is_running, scripts)) == 1)
            assert len(list(temporary.iterdir())) == 2
            subprocess.run(
                [*PLAN, "train.py"],
                check=True,
                stdout=subprocess.DEVNULL,
                **quiet,
            )
            assert len(list(temporary.iterdir())) == 1
            alive.terminate()
        except BaseException:  # neither is waited for
            killed.kill()
            alive.kill()
            raise


def is_running(process):
    status = pathlib.Path(f"/proc/{process}/stat")
    return status.exists() and ") Z " not in status.read_text()
