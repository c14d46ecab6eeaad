"""What a change of the op sequence costs: runs programs and judges the steps.

Needs the simulated GPU: its clock says what a step took.
"""

import statistics

import torch
import torch_chameleon
from integration import changing_programs
from torch_chameleon import swap_stats

ALONE = 8  # steps
LATE = 0.05
WAITED_FOR = 0.1
COUNTS = (
    "faults",
    "bytes_in",
    "bytes_out",
    "prefetched_bytes",
    "ops",
    "forecast_misses",
)


def run(program, arguments, size, only=None, marked=False):
    """Runs a program, or its first step and then one kind; rows of steps."""

    def mark():
        event = torch.Event("chameleon", enable_timing=True)
        event.record()
        return event, swap_stats()

    made = getattr(changing_programs, program)
    steps = made(getattr(changing_programs, size), **arguments)
    kinds, marks = [], []
    for kind, step in steps if only is None else _alone(steps, only):
        marks = marks or [mark()]
        step()
        if marked:
            torch_chameleon.step()
        kinds.append(kind)
        marks.append(mark())
    torch.chameleon.synchronize()
    kinds[0] = "first"  # it makes the optimizer's state
    return [
        {"kind": kind, "ms": before[0].elapsed_time(after[0])}
        | {key: after[1][key] - before[1][key] for key in COUNTS}
        for kind, before, after in zip(kinds, marks, marks[1:], strict=False)
    ]


def _alone(steps, kind):
    """The first step, and then one of this kind again and again."""
    yield next(steps)
    step = next(step for each, step in steps if each == kind)
    for _ in range(ALONE):
        yield kind, step


def steady_times(rows, key="kind"):
    """Milliseconds of each kind: the median of the second half of its steps."""
    times = {}
    for row in rows:
        times.setdefault(row[key], []).append(row["ms"])
    return {
        kind: statistics.median(each[len(each) // 2 :])
        for kind, each in times.items()
    }


def judge(rows):
    """Adds to each row what is said of its step.

    new: the first one of its kind. settling: the one after a new one, which may
    have to write out what demand paging left. paged: more than a tenth of the
    bytes that came were waited for. lost: paged, or 5 % longer than its kind
    takes when steady; after the same kind as here, since a step may leave work
    for the next one; and 5 % of the average step at least, for the same reason.
    excess: by so many steps it took longer than when steady.
    """
    before = {"kind": "", "new": False}
    for row in rows:
        row["after"] = f"{row['kind']} after {before['kind']}"
        before = row
    steady, steady_after = steady_times(rows), steady_times(rows, "after")
    usual_step = mean(rows, "ms")
    seen = set()
    before = {"new": False}
    for row in rows:
        usual = max(steady[row["kind"]], steady_after[row["after"]])
        excess = (row["ms"] - usual) / max(usual, usual_step)
        row["new"] = row["kind"] not in seen
        row["settling"] = before["new"] and not row["new"]
        row["excess"] = excess
        waited_for = row["bytes_in"] - row["prefetched_bytes"]
        row["paged"] = waited_for > WAITED_FOR * row["bytes_in"]
        row["lost"] = row["paged"] or excess > LATE
        seen.add(row["kind"])
        before = row
    return rows


def late(rows):
    """The second half."""
    return rows[len(rows) // 2 :]


def mean(rows, key):
    """The average of one figure."""
    return statistics.fmean(row[key] for row in rows)
