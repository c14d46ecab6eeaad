"""Launches trainings whose processes fail, and looks at what they leave."""

import json
import os
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path

from torch_chameleon.elastic import chaos

SCRIPT = Path(__file__).with_name("survivor.py")
TIMEOUT_S = 240
OURS = (sys.executable, "-m", "torch_chameleon", "elastic")


def ours(ranks, *options):
    return [*OURS, "--nproc-per-node", str(ranks), *options]


def forked(ranks, *options):
    """Its workers are copies of a process that has loaded torch.

    So a failure costs about a second.
    """
    return ours(ranks, *options, "--start-method", "forkserver", "--run-path")


def marked(failures="", **more):
    """An environment for failures, and what its processes are known by."""
    mark = str(uuid.uuid4())
    path = filter(None, [str(SCRIPT.parent), os.environ.get("PYTHONPATH")])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),  # for --run-path
        "OMP_NUM_THREADS": "1",
        "TEST_MARK": mark,
        chaos.VARIABLE: failures,
        **more,
    }
    return environment, mark


def with_mark(mark):
    """The processes that have this in their environment."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            said = Path(f"/proc/{process}/environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in said:
            found.append(int(process))
    return found


def assert_nobody_is_left(mark):
    deadline = time.monotonic() + 20
    while with_mark(mark):
        assert time.monotonic() < deadline, with_mark(mark)
        time.sleep(0.05)


def launch(command, failures="", status=0, timeout_s=TIMEOUT_S, **environment):
    """Runs it to its end, after which no process is left; what it printed."""
    environment, mark = marked(failures, **environment)
    done = subprocess.run(
        [*map(str, command)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout_s,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout
    assert_nobody_is_left(mark)
    return done.stdout


def results(folder, ranks):
    """What each rank that came to the end has."""
    files = [folder / f"{rank}.json" for rank in range(ranks)]
    return [json.loads(each.read_text()) for each in files if each.exists()]


def lives(folder, rank=0):
    """At which step, and of how many ranks, each life of a rank began."""
    lines = (folder / f"lives.{rank}").read_text().splitlines()
    return [tuple(map(int, line.split())) for line in lines]


def last_line(printed):
    return re.sub(r"[\d.]+ s\b", "S", printed.splitlines()[-1])
