"""Four ranks on the CPU runtime, and many failures: a run, and what it shows.

Usage: chaos_runs.py [SEED...] runs all of RUNS with schedules of these seeds,
each against the run that never failed. The device has 1 MiB, so it swaps.
Workers are forked from a process that has loaded torch, so that a failure costs
about a second.
"""

import functools
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch
from test_survival import OURS, assert_nobody_is_left, lives, marked
from torch_chameleon.elastic import chaos

RANKS, FAILURES, TIMEOUT_S = 4, 20, 280
WIDTHS = {"gpt_without_dropout": "64", "gpt": "64", "resnet": "48"}
QUICK = ("kill", "error", "full", "sibling", "flip", "tear")
SCRIPT = Path(__file__).with_name("survivor.py")


class Run(NamedTuple):
    """What is run, and what comes of it."""

    kind: str
    way: str
    options: tuple[str, ...]
    kinds: tuple[str, ...] = QUICK
    one: str = ""  # which comes once, whatever is drawn
    failures: int = FAILURES
    is_exact: bool = True  # else ranks become fewer: sums have another order
    apart: int = 1  # steps: by price who fails twice at once has no device

    @property
    def steps(self):
        return (self.failures + 2) * self.apart

    @property
    def micro_batches(self):
        """As many for each rank, also when there are fewer."""
        return RANKS if self.is_exact else 12


SAVING = ("--checkpoint-steps", "1", "--checkpoint")
RUNS = {
    "by price": Run(
        "gpt", "ddp", ("--policy", "auto", *SAVING), one="lose", apart=3
    ),
    "in place": Run("resnet", "ddp", ("--policy", "in-place"), one="stop"),
    "sharded": Run("gpt", "fsdp2", ("--policy", "in-place")),
    "from disk": Run(
        "resnet", "fsdp2", ("--policy", "checkpoint", *SAVING),
        ("kill", "error", "full", "sibling"),
    ),
    "resharded": Run(
        "gpt_without_dropout", "fsdp2", ("--policy", "reshard"),
        failures=RANKS - 1, is_exact=False,
    ),
    "resharded by price": Run(
        "resnet", "ddp", ("--lost-devices",),
        failures=RANKS - 1, is_exact=False,
    ),
}  # fmt: skip


class Outcome(NamedTuple):
    """What a run left."""

    printed: str
    results: list[dict]  # of ranks that are left
    parameters: list[torch.Tensor]
    memory: list[dict]
    begun: list[tuple[int, int]]  # step and ranks of each life
    took_s: float

    @property
    def lost(self):
        """How many steps, as the launcher says."""
        said = re.search(r"; (no|\d+) steps? lost", self.printed)[1]
        return 0 if said == "no" else int(said)

    @property
    def done(self):
        """What was done about each failure, as the launcher says."""
        said = re.search(r"\nelastic: \d+ failures? \((.*?)\);", self.printed)
        return said[1].split(", ")


def schedule(run, seed):
    """Failures of a seed."""
    drawn = chaos.schedule(seed, run.failures, RANKS, run.failures, run.kinds)
    if run.one:
        at = random.Random(seed).randrange(len(drawn))
        drawn[at] = drawn[at]._replace(kind=run.one, phase="forward")
    return [each._replace(step=run.apart * each.step) for each in drawn]


def go(run, failures, folder):
    """Runs it to its end, after which no process is left."""
    options = list(run.options)
    if options[-1] == "--checkpoint":
        options.append(str(folder / "saved"))
    began = time.monotonic()
    environment, mark = marked(failures)
    done = subprocess.run(
        [*OURS, "--nproc-per-node", str(RANKS), *options, "--max-restarts",
         str(len(failures)), "--start-method", "forkserver", "--run-path",
         str(SCRIPT), run.kind, run.way, str(folder), str(run.steps),
         str(run.micro_batches), WIDTHS[run.kind]],
        env={**environment, "CHAMELEON_HBM_BUDGET": "1MiB",
             "CHAMELEON_HOST_BUDGET": "64MiB"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIMEOUT_S,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert_nobody_is_left(mark)
    begun = lives(folder)
    saved = [torch.load(folder / f"{x}.pt") for x in range(begun[-1][1])]
    return Outcome(
        done.stdout,
        [
            json.loads((folder / f"{x}.json").read_text())
            for x in range(begun[-1][1])
        ],
        saved[0][0],
        [used for _, used in saved],
        begun,
        time.monotonic() - began,
    )


@functools.cache
def without_failure(run):
    with tempfile.TemporaryDirectory() as folder:
        return go(run._replace(options=("--policy", "in-place")), [],
                  Path(folder))  # fmt: skip


def check(name, seed, folder):
    """Runs it, and holds what is promised against it."""
    run = RUNS[name]
    made = schedule(run, seed)
    whole, found = without_failure(run), go(run, made, folder)
    assert len(found.begun) == len(made) + 1, found.printed
    for used in found.memory:
        assert used["evictions"] > 0
        assert used["kept"] == 2 * used["held"]  # files and mappings
    from_disk = [x == "from the checkpoint" for x in found.done]
    if not any(from_disk):  # a disk may be slower than a step
        assert found.lost <= len(made)
        for failure, (step, _) in zip(made, found.begun[1:], strict=True):
            assert failure.step - step <= 1, (made, found.begun)
    if run.is_exact:
        assert found.results == whole.results
        expected = {
            x: "from the checkpoint"
            for x, f in enumerate(made)
            if f.kind == "lose" or "checkpoint" in run.options
        }
        assert found.done == [expected.get(x, "in place")
                              for x in range(len(made))]  # fmt: skip
        assert {ranks for _, ranks in found.begun} == {RANKS}
    else:
        left = list(range(RANKS - 1, 0, -1))
        assert found.done == [f"resharded onto {x}" for x in left]
        assert [ranks for _, ranks in found.begun] == [RANKS, *left]
        for ours, theirs in zip(
            found.parameters, whole.parameters, strict=True
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)
    return found


if __name__ == "__main__":
    for seed in map(int, sys.argv[1:] or ["0"]):
        for name in RUNS:
            with tempfile.TemporaryDirectory() as folder:
                found = check(name, seed, Path(folder))
            print(
                f"seed {seed}, {name}: {len(found.done)} failures, "
                f"{found.lost} steps lost, {found.took_s:.0f} s",
                flush=True,
            )
