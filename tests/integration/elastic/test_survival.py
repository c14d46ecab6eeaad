"""Trainings whose processes fail end with the bits of the one that did not.

Two ranks with gloo, under our launcher and under torchrun: killed in the middle
of forward, backward, the optimizer and a commit, with errors and damaged
memory. No process and no memory outlives the launcher.
"""

import contextlib
import functools
import json
import re
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from launching import (
    OURS,
    SCRIPT,
    TIMEOUT_S,
    assert_nobody_is_left,
    forked,
    last_line,
    launch,
    lives,
    marked,
    ours,
    results,
    with_mark,
)
from support import torchrun
from torch_chameleon.elastic import chaos


def free_port():
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(command, folder, kind, way, failures=""):
    """Runs it to its end; what it printed, and what each rank has."""
    printed = launch([*command, SCRIPT, kind, way, folder], failures)
    return printed, results(folder, 2)


@functools.cache
def without_failure(kind, way):
    with tempfile.TemporaryDirectory() as folder:
        printed, found = run(forked(2), Path(folder), kind, way)
        assert printed.splitlines()[-1] == (
            "elastic: no failures; no steps lost"
        )
        return found


def survive(command, folder, kind, way, failures):
    """Runs it, looks at all bits, and counts what was lost."""
    printed, found = run(command, folder, kind, way, failures)
    assert found == without_failure(kind, way)
    begun = [step for step, _ in lives(folder)]
    assert begun == [step for step, _ in lives(folder, 1)]
    made = chaos.parse(failures)
    assert (begun[0], len(begun)) == (0, len(made) + 1)
    least = most = 0
    for failure, step in zip(made, begun[1:], strict=True):
        is_damage = failure.kind in ("flip", "tear")
        is_late = failure.phase in ("optimizer", "commit")
        # Whoever kills another one may both have ended the step.
        ahead = is_late and failure.kind == "sibling"
        # Killed while checksums of the last commit are computed it loses that.
        assert -ahead <= failure.step - step <= 1, (failures, begun)
        if is_damage:
            assert step == max(failure.step - 1, 0), (failures, begun)
        # Another rank may have ended the step in whose optimizer this one died.
        most += failure.step - step + is_late
        least += max(failure.step - step + (failure.phase == "commit"), 0)
    if command[: len(OURS)] == list(OURS):
        done = ", ".join(["in place"] * len(made))
        assert last_line(printed) in [
            f"elastic: {counted(len(made), 'failure')} ({done}); "
            f"{counted(lost, 'step')} lost; "
            f"back after {', '.join(['S'] * len(made))}"
            for lost in range(least, most + 1)
        ]


def counted(number, what):
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


@pytest.mark.sample
def test_one_rank_is_killed(tmp_path):
    survive(forked(2), tmp_path, "gpt", "ddp", "kill:1:2:backward")


@pytest.mark.slow
@pytest.mark.parametrize("phase", chaos.PHASES)
@pytest.mark.parametrize("kind", ["gpt", "resnet"])
def test_killed_in_the_middle_of(phase, kind, tmp_path):
    failures = f"kill:1:2:{phase},sibling:0:4:{phase}"
    survive(ours(2), tmp_path, kind, "ddp", failures)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt", "resnet"])
def test_under_torchrun(kind, tmp_path):
    failures = "kill:0:1:forward,tear:1:3:backward,kill:1:4:commit"
    command = torchrun(2, "--max-restarts", "3")
    survive(command, tmp_path, kind, "ddp", failures)


@pytest.mark.slow
def test_under_torchrun_with_a_port(tmp_path):
    """Then its workers meet in another way."""
    command = torchrun(2, "--max-restarts", "3", "--master-port", free_port())
    command.remove("--standalone")
    survive(command, tmp_path, "gpt", "ddp", "error:0:2:commit")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt", "resnet"])
def test_shards_come_back_in_place(kind, tmp_path):
    failures = "kill:1:1:backward,flip:0:3:backward,error:1:5:commit"
    survive(ours(2), tmp_path, kind, "fsdp2", failures)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_one_rank_goes_on_with_all_of_it(way, tmp_path):
    """gloo adds two numbers in either order: the bits are those of two."""
    command = ours(2, "--policy", "reshard")
    printed, _ = run(
        command, tmp_path, "gpt_without_dropout", way, "kill:1:3:backward"
    )
    (_, step) = begun = lives(tmp_path)
    assert begun in ([(0, 2), (3, 1)], [(0, 2), (2, 1)])  # or not whole yet
    assert last_line(printed) == (
        "elastic: 1 failure (resharded onto 1); "
        f"{counted(3 - step[0], 'step')} lost; back after S"
    )
    found = json.loads((tmp_path / "0.json").read_text())
    assert found == without_failure("gpt_without_dropout", way)[0]


@pytest.mark.slow
def test_a_stopped_rank_is_found_by_whoever_waits_for_it(tmp_path):
    survive(ours(2), tmp_path, "gpt", "ddp", "stop:1:2:forward")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_seeded_schedules(seed, tmp_path):
    made = chaos.schedule(seed, 4, ranks=2, steps=6)
    kind = ["gpt", "resnet"][seed % 2]
    command = ours(2, "--max-restarts", "4", "--policy", "in-place")
    survive(command, tmp_path, kind, "ddp", chaos.text(made))


@pytest.mark.slow
def test_a_run_that_fails_for_good_says_so(tmp_path):
    command = ours(2, "--max-restarts", "1")
    printed = launch(
        [*command, SCRIPT, "gpt", "ddp", tmp_path],
        "kill:0:1:forward,kill:0:2:forward",
        status=1,
    )
    assert re.fullmatch(
        r"elastic: 2 failures \(in place, given up\); (no|1) steps? lost; "
        "back after S",
        last_line(printed),
    )


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["ours", "torchrun"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nobody_outlives_an_agent_that_is_ended(agent, number, tmp_path):
    environment, mark = marked("stop:0:2:forward")
    command = ours(2) if agent == "ours" else torchrun(2, "--max-restarts", "3")
    process = subprocess.Popen(
        [*command, SCRIPT, "gpt", "ddp", tmp_path],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + TIMEOUT_S
    while not (tmp_path / "lives.0").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert len(with_mark(mark)) >= 3
    process.send_signal(number)
    process.wait(TIMEOUT_S)
    assert_nobody_is_left(mark)
