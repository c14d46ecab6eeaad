"""The command `plan`: options, mistakes in them, and the environment."""

import pathlib

import pytest
from torch_chameleon import _C
from torch_chameleon.plan import (
    arguments,
    machine,
)


def test_g_is_gib(tmp_path, capsys):
    (tmp_path / "train.py").write_text("")
    options = arguments.parse(
        ["--budget", "1.5G", "--host", "3 m", str(tmp_path / "train.py")]
    )
    assert (options.budget, options.host) == (3 << 29, 3 << 20)
    assert capsys.readouterr().err == (
        "torch_chameleon plan: 1.5G is read as 1.5GiB\n"
        "torch_chameleon plan: 3 m is read as 3 MiB\n"
    )


def test_a_card_gives_what_cuda_takes():
    """Of an H100 with nothing else on it: measured."""
    assert abs(machine.default_budget(80 << 30) / 2**30 - 70.80) < 0.1


def test_the_host_is_this_machine_s_or_the_card_s():
    total = _C.machine_memory()[0]
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
        (["--oversubscription", "0.5"], "must be a number from 1 to"),
        (["--oversubscription", "much"], "must be a number from 1 to"),
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
