"""A machine dies with its memory; another one takes its place, and no disk.

Machines are launchers of this one that meet by a store of the test's: each is
killed as a whole, with its workers and whatever holds their memory, and then
started again as a user would.
"""

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from launching import (
    OURS,
    SCRIPT,
    TIMEOUT_S,
    assert_nobody_is_left,
    launch,
    lives,
    marked,
    ours,
    results,
    with_mark,
)
from test_survival import run
from test_survival import without_failure as of_two

STEPS = 8
LAST_CALL_S = 8  # for a machine whose start takes longer than another one's
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


def is_stopped(process):
    with contextlib.suppress(OSError):
        said = Path(f"/proc/{process}/stat").read_text()
        return said.rpartition(")")[2].split()[0] == "T"
    return False


def shall_end(process):
    said = Path(f"/proc/{process}/status").read_text()
    pending = int(re.search(r"ShdPnd:\s*(\w+)", said)[1], 16)
    return pending >> (signal.SIGTERM - 1) & 1


class Job(NamedTuple):
    """What is run."""

    ranks: int  # of a machine
    machines: int = 2
    kind: str = "gpt"
    way: str = "fsdp2"
    micro_batches: int = 0  # default: one for each rank

    @property
    def world(self):
        return self.ranks * self.machines

    def script(self, folder):
        words = SCRIPT, self.kind, self.way, folder, STEPS
        return [*map(str, words), str(self.micro_batches or self.world)]


class Machines:
    """Launchers of one training; each of their processes has a mark."""

    def __init__(
        self, folder, launcher, job, nodes="2", options=("--partner",)
    ):
        self.folder, self._job, self._nodes = folder, job, nodes
        self._launcher, self._options = launcher, options
        self._store = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False
        )
        self._run = str(uuid.uuid4())
        self._running = {}

    def start(self, name, failures=""):
        """One more; its output goes to a file of its name."""
        environment, mark = marked(failures)
        options = [
            *(
                "--nnodes",
                self._nodes,
                "--nproc-per-node",
                str(self._job.ranks),
            ),
            *("--rdzv-backend", "c10d", "--rdzv-id", self._run),
            *("--rdzv-endpoint", f"127.0.0.1:{self._store.port}"),
            "--rdzv-conf",
            # A timer that is a little early skips a beat: two are too few.
            "is_host=0,keep_alive_interval=1,keep_alive_max_attempt=4,"
            f"last_call_timeout={LAST_CALL_S if ':' in self._nodes else 1}",
            *("--max-restarts", "3"),
        ]
        if self._launcher == OURS:
            options += self._options
        else:
            environment["CHAMELEON_PARTNER"] = "1"
            environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        with open(self.folder / name, "w") as out:
            process = subprocess.Popen(
                [*self._launcher, *options, *self._job.script(self.folder)],
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self._running[name] = process, mark

    def kill(self, name):
        """All of its processes at once; its memory is gone."""
        process, mark = self._running.pop(name)
        for each in with_mark(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        process.wait(TIMEOUT_S)
        assert_nobody_is_left(mark)

    def kill_who_stands_still(self):
        """The machine of which a worker was stopped."""
        self.kill(self.who_stands_still())

    def who_stands_still(self):
        """Waits until a worker is stopped; on which machine it was."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            for name, (_, mark) in self._running.items():
                if any(map(is_stopped, with_mark(mark))):
                    return name
            assert time.monotonic() < deadline, self.printed()
            time.sleep(0.05)

    def resume_who_shall_end(self, name):
        """Whoever stands still goes on when its agent has told it to end."""
        (process,) = filter(is_stopped, with_mark(self._running[name][1]))
        deadline = time.monotonic() + TIMEOUT_S
        while not shall_end(process):
            assert time.monotonic() < deadline, self.printed()
            time.sleep(0.05)
        os.kill(process, signal.SIGCONT)

    def wait(self):
        """Until all are over; what the last line of each says."""
        said = {}
        for name, (process, mark) in self._running.items():
            status = process.wait(TIMEOUT_S)
            printed = (self.folder / name).read_text()
            assert status == 0, printed
            assert_nobody_is_left(mark)
            said[name] = printed.splitlines()[-1] if printed else ""
        self._running.clear()
        return said

    def close(self):
        for name in list(self._running):
            self.kill(name)

    def printed(self):
        return "\n".join(
            (self.folder / name).read_text() for name in self._running
        )


@pytest.fixture
def machines(tmp_path):
    made = []

    def make(*arguments, **named):
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Machines(folder, *arguments, **named))
        return made[-1]

    yield make
    for each in made:
        each.close()


@functools.cache
def without_failure(job):
    """On one machine: where ranks are is no part of their bits."""
    with tempfile.TemporaryDirectory() as folder:
        launch(
            [
                *(*OURS, "--nproc-per-node", str(job.world)),
                *job.script(folder),
            ]
        )
        return results(Path(folder), job.world), parameters(Path(folder))


def parameters(folder):
    return torch.load(folder / "0.pt")[0]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [OURS, TORCHRUN], ids=["ours", "torchrun"])
@pytest.mark.parametrize(
    ("ranks", "rank", "phase"),
    [
        (1, 0, "backward"),
        (1, 1, "commit"),
        (2, 0, "optimizer"),
        (2, 2, "forward"),
    ],
)
def test_a_machine_dies(machines, launcher, ranks, rank, phase):
    failure = f"stop:{rank}:{STEPS // 2}:{phase}"
    job = Job(ranks)
    made = machines(launcher, job)
    made.start("first", failure)
    made.start("second", failure)
    made.kill_who_stands_still()
    made.start("another")
    said = made.wait()
    assert results(made.folder, job.world) == without_failure(job)[0]
    (first, _), (again, _) = lives(made.folder)
    assert first == 0 < again <= STEPS // 2 + 1
    if launcher == OURS:
        (survivor,) = set(said) - {"another"}
        line = re.fullmatch(
            r"elastic: 1 failure \(from a partner\); (no|\d+) steps? lost; "
            r"back after [\d.]+ s",
            said[survivor],
        )
        lost = int(line[1].replace("no", "0"))
        # Others may have ended the step in whose optimizer it stood still.
        ahead = phase in ("optimizer", "commit")
        assert 0 <= lost - (STEPS // 2 - again) <= ahead
        assert said["another"] == (
            f"elastic: no failures; {line[1]} step{'s' * (lost != 1)} lost"
        )


@pytest.mark.slow
def test_one_machine_dies_and_then_the_other_one(machines):
    made = machines(OURS, Job(1))
    failures = "stop:0:2:backward,stop:0:5:backward,stop:1:5:backward"
    made.start("first", failures)
    made.start("second", failures)
    made.kill_who_stands_still()
    made.start("another")
    made.kill_who_stands_still()  # in its second life
    made.start("a third")
    said = made.wait()
    assert results(made.folder, 2) == without_failure(Job(1))[0]
    begun = [step for step, _ in lives(made.folder)]
    assert begun[0] == 0 < begun[1] <= begun[2]
    assert "from a partner" in said["another"]


def of_fewer(ranks, machines, way):
    """Fewer ranks can share its samples; their sums have another order."""
    world = ranks * machines
    micro_batches = world * (world - ranks)
    return Job(ranks, machines, "gpt_without_dropout", way, micro_batches)


def assert_alike(folder, job):
    torch.testing.assert_close(
        parameters(folder), without_failure(job)[1], rtol=1e-2, atol=1e-2
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "way", "ranks", "number", "rank"),
    [
        (OURS, "fsdp2", 1, 2, 0),
        (OURS, "ddp", 1, 2, 1),
        (OURS, "fsdp2", 1, 3, 1),
        (OURS, "ddp", 2, 2, 0),
        (OURS, "fsdp2", 2, 2, 2),
        (TORCHRUN, "fsdp2", 2, 2, 1),
    ],
)
def test_a_machine_is_lost_for_good(
    machines, launcher, way, ranks, number, rank
):
    job, at = of_fewer(ranks, number, way), STEPS // 2
    made = machines(launcher, job, f"{number - 1}:{number}")
    for each in range(number):
        made.start(f"machine {each}", f"stop:{rank}:{at}:backward")
    made.kill_who_stands_still()
    said = made.wait()
    assert len(said) == number - 1
    left = job.world - ranks
    first, (step, now) = lives(made.folder)
    assert (first, now) == ((0, job.world), left)
    assert 0 < step <= at  # the last one, but where copies take longer
    assert_alike(made.folder, job)
    if launcher == OURS:
        lost = at - step
        for each in said.values():
            assert re.fullmatch(
                rf"elastic: 1 failure \(resharded onto {left}\); "
                rf"{lost or 'no'} steps? lost; back after [\d.]+ s",
                each,
            )


@pytest.mark.slow
def test_a_machine_comes_later(machines):
    """Until then the other one is alone; its coming costs nothing but time."""
    job, at = of_fewer(1, 2, "fsdp2"), STEPS // 2
    made = machines(OURS, job, "1:2")
    for each in range(2):
        made.start(f"machine {each}", f"stop:1:{at}:backward,stop:0:6:forward")
    made.kill_who_stands_still()
    alone = made.who_stands_still()
    made.start("another")
    made.resume_who_shall_end(alone)
    said = made.wait()
    first, (step, ranks), last = lives(made.folder)
    assert first == (0, 2)
    assert (0 < step <= at, ranks) == (True, 1)
    assert last in [(5, 2), (6, 2)]
    assert lives(made.folder, 1) == [first, last]
    assert said[alone].startswith("elastic: 1 failure (resharded onto 1); ")
    assert said["another"].startswith("elastic: no failures; ")
    assert_alike(made.folder, job)


@pytest.mark.slow
def test_a_machine_is_lost_for_good_and_nobody_had_copies(machines, tmp_path):
    job, at = of_fewer(1, 2, "fsdp2"), STEPS // 2 + 1
    saving = "--checkpoint", str(tmp_path / "saved"), "--checkpoint-steps", "2"
    made = machines(OURS, job, "1:2", saving)
    for number in range(2):
        made.start(f"machine {number}", f"stop:1:{at}:backward")
    made.kill_who_stands_still()
    (said,) = made.wait().values()
    (_, (step, ranks)) = lives(made.folder)
    assert (step, ranks) in [(at - 1, 1), (at - 3, 1)]  # a disk may be slower
    assert said.startswith("elastic: 1 failure (from the checkpoint); ")
    assert_alike(made.folder, job)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failures", "done"),
    [
        ("kill:1:2:backward,error:0:4:optimizer", "in place"),
        ("stop:0:3:forward,sibling:1:5:commit", "in place"),
        ("lose:1:4:backward", "from a partner"),
        ("flip:0:4:forward", "in place"),  # the one before is
    ],
)
def test_partners_on_one_machine(failures, done, tmp_path, monkeypatch):
    """No process waits for a copy: neither one that fails, nor the others."""
    monkeypatch.setenv("CHAMELEON_TEST_ONE_MACHINE", "1")
    command = ours(2, "--partner", "--policy", "in-place")
    printed, found = run(command, tmp_path, "gpt", "fsdp2", failures)
    assert found == of_two("gpt", "fsdp2")
    assert f"({', '.join([done] * (failures.count(',') + 1))})" in printed
    if "lose" in failures:
        assert lives(tmp_path)[1][0] > 0


@pytest.mark.slow
def test_a_partner_is_chosen_by_price(tmp_path, monkeypatch):
    monkeypatch.setenv("CHAMELEON_TEST_ONE_MACHINE", "1")
    command = ours(2, "--partner")
    printed, found = run(command, tmp_path, "gpt", "fsdp2", "lose:1:5:forward")
    assert found == of_two("gpt", "fsdp2")
    (line,) = re.findall("chameleon: a rank failed: .*", printed)
    assert "in place: no generation is whole" in line
    assert re.search(r"from a partner [\d.]+ s", line)
    assert line.endswith("chosen: from a partner")
    assert "elastic: 1 failure (from a partner); " in printed
    assert 0 < lives(tmp_path)[1][0] <= 5
