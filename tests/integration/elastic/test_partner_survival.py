"""A machine dies with its memory; another one takes its place, and no disk.

Machines are launchers of this one that meet by a store of the test's: each is
killed as a whole, with its workers and whatever holds their memory, and then
started again as a user would.
"""

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest
import torch.distributed as dist
from test_survival import (
    OURS,
    SCRIPT,
    TIMEOUT_S,
    assert_nobody_is_left,
    lives,
    ours,
    run,
    with_mark,
)
from test_survival import without_failure as of_two
from torch_chameleon.elastic import chaos

STEPS = 8
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


def is_stopped(process):
    with contextlib.suppress(OSError):
        said = Path(f"/proc/{process}/stat").read_text()
        return said.rpartition(")")[2].split()[0] == "T"
    return False


class Machines:
    """Launchers of one training; each of their processes has a mark."""

    def __init__(self, folder, launcher, ranks):
        self.folder, self._ranks = folder, ranks
        self._launcher = launcher
        self._store = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False
        )
        self._run = str(uuid.uuid4())
        self._running = {}

    def start(self, name, failures=""):
        """One more; its output goes to a file of its name."""
        mark = str(uuid.uuid4())
        options = [
            *("--nnodes", "2", "--nproc-per-node", str(self._ranks)),
            *("--rdzv-backend", "c10d", "--rdzv-id", self._run),
            *("--rdzv-endpoint", f"127.0.0.1:{self._store.port}"),
            "--rdzv-conf",
            "is_host=0,keep_alive_interval=1,keep_alive_max_attempt=2,"
            "last_call_timeout=1",
            *("--max-restarts", "3"),
        ]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "TEST_MARK": mark,
            chaos.VARIABLE: failures,
        }
        if self._launcher == OURS:
            options.append("--partner")
        else:
            environment["CHAMELEON_PARTNER"] = "1"
            environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        script = [SCRIPT, "gpt", "fsdp2", self.folder, STEPS]
        script.append(2 * self._ranks)  # micro-batches: one for each rank
        with open(self.folder / name, "w") as out:
            process = subprocess.Popen(
                [*self._launcher, *options, *map(str, script)],
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
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            for name, (_, mark) in self._running.items():
                if any(map(is_stopped, with_mark(mark))):
                    self.kill(name)
                    return
            assert time.monotonic() < deadline, self.printed()
            time.sleep(0.05)

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

    def make(*arguments):
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Machines(folder, *arguments))
        return made[-1]

    yield make
    for each in made:
        each.close()


@functools.cache
def without_failure(ranks):
    """On one machine: where ranks are is no part of their bits."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                *(*OURS, "--nproc-per-node", str(2 * ranks), SCRIPT, "gpt"),
                *("fsdp2", folder, str(STEPS), str(2 * ranks)),
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
            check=True,
        )
        return results(Path(folder), ranks)


def results(folder, ranks):
    return [
        json.loads((folder / f"{rank}.json").read_text())
        for rank in range(2 * ranks)
    ]


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
    made = machines(launcher, ranks)
    made.start("first", failure)
    made.start("second", failure)
    made.kill_who_stands_still()
    made.start("another")
    said = made.wait()
    assert results(made.folder, ranks) == without_failure(ranks)
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
    made = machines(OURS, 1)
    failures = "stop:0:2:backward,stop:0:5:backward,stop:1:5:backward"
    made.start("first", failures)
    made.start("second", failures)
    made.kill_who_stands_still()
    made.start("another")
    made.kill_who_stands_still()  # in its second life
    made.start("a third")
    said = made.wait()
    assert results(made.folder, 1) == without_failure(1)
    begun = [step for step, _ in lives(made.folder)]
    assert begun[0] == 0 < begun[1] <= begun[2]
    assert "from a partner" in said["another"]


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
