"""Four ranks on the CPU runtime, and many failures: a run, and what it shows.

Usage: chaos_runs.py [SEED...] runs all of RUNS with schedules of these seeds,
each against the run that never failed. The device has 1 MiB, so it swaps.
Workers are forked from a process that has loaded torch, so that a failure costs
about a second.
"""

import functools
import random
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import healing
import torch
from launching import SCRIPT, forked, launch, lives, results
from torch_chameleon.elastic import chaos

RANKS, FAILURES, TIMEOUT_S = 4, 20, 280
WIDTHS = {"gpt_without_dropout": "64", "gpt": "64", "resnet": "48"}
QUICK = ("kill", "error", "full", "sibling", "flip", "tear")
REPLICA = SCRIPT.with_name("replica.py")
HEAL = "pip install torch_chameleon[heal]"


class Run(NamedTuple):
    """What is run, and what comes of it."""

    kind: str  # of model
    way: str
    options: tuple[str, ...]
    kinds: tuple[str, ...] = QUICK
    one: str = ""  # which comes once, whatever is drawn
    failures: int = FAILURES
    is_exact: bool = True  # else ranks become fewer: sums have another order
    apart: int = 1  # steps: by price who fails twice at once has no device

    ranks: int = RANKS

    @property
    def steps(self):
        return (self.failures + 2) * self.apart

    def script(self, folder):
        """With its arguments."""
        if self.way == "healed":
            arguments = self.kind, folder, self.steps
            return REPLICA, *arguments, WIDTHS[self.kind]
        # As many micro-batches for each rank, also when there are fewer.
        micro_batches = self.ranks if self.is_exact else 12
        arguments = self.kind, self.way, folder, self.steps, micro_batches
        return SCRIPT, *arguments, WIDTHS[self.kind]


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
    "healed": Run("gpt", "healed", ("--policy", "heal"), apart=15),
    "healed with images": Run(
        "resnet", "healed", ("--policy", "heal"), one="lose", apart=15
    ),
}  # fmt: skip


class Outcome(NamedTuple):
    """What the launcher says."""

    printed: str
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


class Trained(NamedTuple):
    """What the ranks that are left have."""

    results: list[dict]
    parameters: list[torch.Tensor]
    memory: list[dict]
    begun: list[tuple[int, int]]  # step and ranks of each life

    @classmethod
    def of(cls, folder):
        begun = lives(folder)
        ranks = begun[-1][1]
        saved = [torch.load(folder / f"{rank}.pt") for rank in range(ranks)]
        memory = [used for _, used in saved]
        return cls(results(folder, ranks), saved[0][0], memory, begun)


def schedule(run, seed):
    """Failures of a seed."""
    drawn = chaos.schedule(
        seed, run.failures, run.ranks, run.failures, run.kinds
    )
    if run.one:
        at = random.Random(seed).randrange(len(drawn))
        drawn[at] = drawn[at]._replace(kind=run.one, phase="forward")
    return [each._replace(step=run.apart * each.step) for each in drawn]


def go(run, failures, folder):
    """Runs it to its end."""
    options = [*run.options, "--max-restarts", str(len(failures))]
    if "--checkpoint" in options:
        options.insert(options.index("--checkpoint") + 1, folder / "saved")
    began = time.monotonic()
    printed = launch(
        [*forked(run.ranks, *options), *run.script(folder)],
        chaos.text(failures),
        timeout_s=TIMEOUT_S,
        CHAMELEON_HBM_BUDGET="1MiB",
        CHAMELEON_HOST_BUDGET="64MiB",
    )
    return Outcome(printed, time.monotonic() - began)


@functools.cache
def without_failure(run):
    with tempfile.TemporaryDirectory() as folder:
        go(run._replace(options=("--policy", "in-place")), [], Path(folder))
        return Trained.of(Path(folder))


def assert_within_budgets(memory):
    for used in memory:
        assert used["evictions"] > 0
        assert used["kept"] == 2 * used["held"]  # files and mappings


def survive(run, made, folder):
    """A process that fails costs a step at most, and no bit."""
    whole, found = without_failure(run), go(run, made, folder)
    left = Trained.of(folder)
    assert len(left.begun) == len(made) + 1, found.printed
    assert_within_budgets(left.memory)
    from_disk = [x == "from the checkpoint" for x in found.done]
    if not any(from_disk):  # a disk may be slower than a step
        assert found.lost <= len(made)
        for failure, (step, _) in zip(made, left.begun[1:], strict=True):
            assert failure.step - step <= 1, (made, left.begun)
    if run.is_exact:
        assert left.results == whole.results
        expected = {
            x: "from the checkpoint"
            for x, f in enumerate(made)
            if f.kind == "lose" or "checkpoint" in run.options
        }
        assert found.done == [expected.get(x, "in place")
                              for x in range(len(made))]  # fmt: skip
        assert {ranks for _, ranks in left.begun} == {run.ranks}
    else:
        fewer = list(range(run.ranks - 1, 0, -1))
        assert found.done == [f"resharded onto {x}" for x in fewer]
        assert [ranks for _, ranks in left.begun] == [run.ranks, *fewer]
        for ours, theirs in zip(left.parameters, whole.parameters, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)
    return found


def heal(run, made, folder):
    """Nor does one that fails among replicas, and the others go on."""
    found = go(run, made, folder)
    assert found.done == ["healed"] * len(made), found.printed
    assert found.lost <= len(made)
    healing.check(folder, run, made)
    assert_within_budgets(results(folder, run.ranks))
    return found


def check(name, seed, folder):
    """Runs it, and holds what is promised against it."""
    run = RUNS[name]
    kept = heal if run.way == "healed" else survive
    return kept(run, schedule(run, seed), folder)


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
