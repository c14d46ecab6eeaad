"""A sequence of ops that changes costs little, on the simulated GPU's clock.

Programs and figures of full size: tests/benchmarks/policy/adaptation.py.
"""

import itertools
import json
import os
import sys

import pytest

pytestmark = pytest.mark.slow

_PATH = os.pathsep.join(sys.path)

# With 1 / k of the memory that a step needs.
_RUN = """
import json, torch
from integration import adaptation
from torch_chameleon import _C, config, swap_stats
config.physical_device, config.step_marks = "simulated", {marks!r}
config.hbm_budget, config.oversubscription = 1 << 30, 1000
torch.set_default_dtype(torch.bfloat16)
adaptation.run("steady", {{"steps": 2}}, "SMALL")
config.hbm_budget = int(swap_stats()["peak_resident_bytes"] / {k})
config.policy, config.recompute = "forecast", {recompute!r}
marked = {marks!r} == "manual"
rows = adaptation.run({program!r}, {arguments!r}, "SMALL", marked=marked)
_C.check_invariants(0, 3)
print(json.dumps(adaptation.judge(rows)))
"""


@pytest.fixture
def trained(fresh):
    """Runs a program, returns what is said of its steps."""

    def run(program, marks, recompute="off", k=2, **arguments):
        code = _RUN.format(
            program=program,
            arguments=arguments,
            marks=marks,
            recompute=recompute,
            k=k,
        )
        rows = json.loads(fresh(code, PYTHONPATH=_PATH).splitlines()[-1])
        for number, row in enumerate(rows):
            print(number, row)
        return rows

    return run


def waited_for(row):
    """Bytes that came when an op wanted them, not ahead."""
    return row["bytes_in"] - row["prefetched_bytes"]


_PROGRAMS = [
    "steady",
    "train_and_eval",
    "accumulation",
    "skipped_updates",
    "lengths",
    "batch_sizes",
    "phases",
]
_MARKED = pytest.mark.parametrize(
    "marks", ["off", "auto", "manual"], ids=["found", "optimizer", "marked"]
)


@_MARKED
@pytest.mark.parametrize("program", _PROGRAMS)
def test_known_steps_cost_nothing_and_new_ones_one(program, marks, trained):
    """No known step is demand paged; a new one costs less than it takes.

    A step of this small model varies by a tenth with where its blocks lie, so
    times are judged on average.
    """
    rows = trained(program, marks)
    known = [row for row in rows if not row["new"] and not row["settling"]]
    assert len(known) > len(rows) / 2
    assert [row for row in known if row["paged"]] == []
    assert sum(row["excess"] for row in known) <= 0.05 * len(known)
    for row, after in itertools.pairwise(rows):
        if row["new"]:
            settling = after["excess"] if after["settling"] else 0
            assert row["excess"] + settling <= 1


@_MARKED
@pytest.mark.parametrize("program", _PROGRAMS)
def test_re_runs_cost_known_steps_less_than_moves(program, marks, trained):
    """No known step that goes as foreseen is demand paged; all take less time.

    Less moves with re-runs: what moves alone wait for, where a phase comes back
    that begins as the last one did, can be more than a tenth of it. And where a
    phase is as long as it was when another one followed, that one is foreseen.
    """
    moved, rerun = (
        trained(program, marks, recompute) for recompute in ("off", "auto")
    )
    known = [
        (before, row)
        for before, row in zip(moved, rerun, strict=True)
        if not row["new"] and not row["settling"]
    ]
    assert [
        row
        for before, row in known
        if row["paged"]
        and waited_for(row) > waited_for(before)
        and not row["forecast_misses"]
    ] == []
    assert sum(row["ms"] for _, row in known) <= sum(
        before["ms"] for before, _ in known
    )


@_MARKED
def test_random_surprises_cost_little(marks, trained):
    """A tenth of the ops is put in, left out or of other shapes, each step.

    A step of this small model takes a tenth more or less with where its blocks
    lie, so times are those of several budgets together.
    """
    late_ms = []
    for share in (0.0, 0.25):
        rows = [
            row
            for k in (1.8, 1.9, 2, 2.1, 2.2)
            for row in trained("surprises", marks, k=k, share=share)[12:]
        ]
        late_ms.append(sum(row["ms"] for row in rows))
    assert late_ms[1] <= 1.05 * late_ms[0]
