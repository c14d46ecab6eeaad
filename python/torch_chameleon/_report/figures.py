"""The numbers of a report, gathered from a recording. Nothing is drawn here."""

import bisect
import collections
import dataclasses
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

from torch_chameleon import _C, _build_info
from torch_chameleon._changes import advice, lives
from torch_chameleon._report.recording import Recording
from torch_chameleon._report.residency import Tensor, residency

GIB = 1 << 30
_CURVE_POINTS = 6
_RERAN = "reran"  # a lane, of apart_from_reruns
_BINS = 240  # of the link over time


@dataclasses.dataclass(frozen=True)
class Cost:
    """What an op or a module costs in the step."""

    name: str
    calls: int
    compute_ns: int
    stall_ns: int  # compute waited for bytes before it, or for room inside
    rerun_ns: int = 0  # ops ran again before it, for its operands


@dataclasses.dataclass(frozen=True)
class Budget:
    """What another budget would do, by the planner's model."""

    bytes: int
    step_ns: int | None  # None: it does not fit
    bytes_moved: int
    rerun_ns: int  # of the step: ops run again


@dataclasses.dataclass
class Figures:
    """All that a page shows. Empty where nothing was recorded."""

    version: str
    physical_device: str
    options: dict[str, str | None]
    stats: dict[str, int]
    step: dict[str, Any] | None
    peak_bytes: int = 0  # of a step, without a limit
    compute_ns: float = 0  # of a step, with room for everything
    budgets: list[Budget] = dataclasses.field(default_factory=list)
    link_in_bytes_per_s: float = 0
    link_out_bytes_per_s: float = 0
    # (ns since the recording began, logical, resident, host bytes)
    memory: list[tuple[int, int, int, int]] = dataclasses.field(
        default_factory=list
    )
    # The step that the page is about: the last one that was recorded, else the
    # last one.
    step_ops: int = 0
    step_ns: int = 0
    waited_ns: int = 0  # of it, with no op running
    recorded_steps: int = 0
    by_op: list[Cost] = dataclasses.field(default_factory=list)
    by_module: list[Cost] = dataclasses.field(default_factory=list)
    # The same with modules of a list as one: "blocks.*.up".
    by_kind: list[Cost] = dataclasses.field(default_factory=list)
    # Shares of what the link can carry, in equal parts of the step.
    link_in: list[float] = dataclasses.field(default_factory=list)
    link_out: list[float] = dataclasses.field(default_factory=list)
    tensors: list[Tensor] = dataclasses.field(default_factory=list)
    tensors_left_out: int = 0
    # What would lower the peak, as `plan` says it.
    changes: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def fits(self) -> bool:
        """Whether the last step found all in device memory."""
        step = self.step
        if step is None or step["bytes_in"] or step["bytes_out"]:
            return False
        if self.by_op:
            return not any(row.rerun_ns for row in self.by_op)
        return not self.stats["rerun_ops"]  # of all steps


def was_used(index: int) -> bool:
    """Whether a tensor was on the device. No use of it."""
    return _C.calls(index) > 0 or _C.swap_stats(index)["peak_logical_bytes"] > 0


def gather(recording: Recording | None, index: int = 0) -> Figures:
    """Asks the device, and sorts what was recorded.

    Args:
        recording: What `recording` recorded, or None.
        index: The device.

    Returns:
        The figures.
    """
    _C.init()
    figures = Figures(
        version=_build_info.VERSION,
        physical_device=_C.physical_device(),
        options={
            spec["key"]: _C.get_option(spec["key"])
            for spec in _C.option_specs()
        },
        stats=_C.swap_stats(index),
        step=None,
    )
    try:
        figures.step = dict(_C.last_step(index))
        figures.step_ns = figures.step["duration_ns"]
        figures.waited_ns = figures.step["stall_ns"]
    except RuntimeError:
        figures.notes.append(
            "No step has ended yet. One ends with an optimizer's step, with a "
            "backward pass, or where ops repeat: run a few."
        )
    else:
        _add_budgets(figures, index)
    if recording is None:
        figures.notes.append(
            "Nothing was recorded: run two or three steps inside `with "
            "torch_chameleon.recording():` to see memory over time, where "
            "tensors were, the link, and what each module costs."
        )
    else:
        _add_recording(figures, recording)
    if figures.fits:
        _say_that_it_fits(figures)
    elif figures.step is not None and recording is not None:
        _add_changes(figures, recording, index)
    return figures


def _say_that_it_fits(figures: Figures) -> None:
    """What was seen counts, and no model or gap between ops contradicts it."""
    enough = figures.stats["hbm_budget"]
    figures.peak_bytes = min(figures.peak_bytes, enough)
    figures.budgets = [
        Budget(row.bytes, round(figures.compute_ns), 0, 0)
        if row.bytes >= enough
        else row
        for row in figures.budgets
    ]
    figures.waited_ns = 0
    for rows in (figures.by_op, figures.by_module, figures.by_kind):
        rows[:] = [dataclasses.replace(row, stall_ns=0) for row in rows]


# ---- what other budgets would do -------------------------------------------


def budgets_to_ask(budget: int, peak: int, largest_op: int) -> list[int]:
    """The budget in force, the next GiB, and some up to the peak.

    A budget of less than 4 GiB grows by a quarter of itself instead.

    Args:
        budget: In force.
        peak: That a step needs without a limit.
        largest_op: What one op needs; less than that never fits.

    Returns:
        Bytes, ascending.
    """
    asked = {budget, budget + next_piece(budget)}
    low = max(largest_op, min(budget, peak) // 2)
    for point in range(_CURVE_POINTS):
        asked.add(low + (peak - low) * point // (_CURVE_POINTS - 1))
    return sorted(each for each in asked if each > 0)


def next_piece(budget: int) -> int:
    """By how much "a little more" is: a GiB, or a quarter of a small budget."""
    return GIB if budget >= 4 * GIB else max(budget // 4, 1)


def _add_budgets(figures: Figures, index: int) -> None:
    asked: list[int] = []

    def choose(whole: dict[str, Any]) -> list[int]:
        asked.extend(
            budgets_to_ask(
                figures.stats["hbm_budget"],
                whole["peak_bytes"],
                whole["largest_op_bytes"],
            )
        )
        return asked

    found = _C.what_if_here(index, choose)
    figures.link_in_bytes_per_s = found["link_in_bytes_per_s"]
    figures.link_out_bytes_per_s = found["link_out_bytes_per_s"]
    figures.peak_bytes = found["peak_bytes"]
    figures.compute_ns = found["compute_ns"]
    figures.budgets = budget_rows(asked, found["steps"], figures.compute_ns)


def budget_rows(
    asked: Sequence[int],
    steps: Sequence[dict[str, Any] | None],
    compute_ns: float,
) -> list[Budget]:
    """Budgets as rows; less memory is never faster.

    A plan is searched for within each, and what is found for one may be a
    little better than for its larger neighbour.

    Args:
        asked: Bytes, ascending.
        steps: Of `_C.what_if_here`.
        compute_ns: Of the step, with room for everything.

    Returns:
        A row each, in the same order.
    """
    rows = []
    least = 0
    for budget, step in reversed(list(zip(asked, steps, strict=True))):
        if step is None:
            rows.append(Budget(budget, None, 0, 0))
            continue
        least = max(least, round(step["duration_ns"]))
        rows.append(
            Budget(
                budget,
                least,
                step["bytes_in"] + step["bytes_out"],
                max(round(step["compute_ns"] - compute_ns), 0),
            )
        )
    return rows[::-1]


# ---- the recorded step -----------------------------------------------------


def _add_recording(figures: Figures, recording: Recording) -> None:
    first, last = recording.last_step()
    figures.step_ops = last - first
    figures.recorded_steps = len(recording.step_ends)
    if recording.memory:
        start_ns = recording.memory[0][0]
        figures.memory = [
            (t - start_ns, logical, resident, host)
            for t, logical, resident, host in recording.memory
        ]
    timeline = apart_from_reruns(recording.timeline)
    ops = [row for row in timeline if first < row[6] <= last]
    if ops:
        begin_ns = min(row[2] for row in ops)
        end_ns = max(row[3] for row in ops)
        figures.step_ns = end_ns - begin_ns
        figures.by_op = costs((row[1] or row[0], row) for row in ops)
        figures.waited_ns = sum(cost.stall_ns for cost in figures.by_op)
        figures.by_module = costs((recording.where(row[6]), row) for row in ops)
        figures.by_kind = costs(
            (kind_of(recording.where(row[6])), row) for row in ops
        )
        copies = [row for row in recording.timeline if row[0] in ("in", "out")]
        for lane, rate, shares in (
            ("in", figures.link_in_bytes_per_s, figures.link_in),
            ("out", figures.link_out_bytes_per_s, figures.link_out),
        ):
            shares += link_use(
                [row[2:5] for row in copies if row[0] == lane],
                begin_ns,
                end_ns,
                rate,
            )
    else:
        figures.notes.append(
            "No op of the step was timed: this device cannot time them, or the "
            "step had more than the 65,536 events that a timeline keeps."
        )
    timed = sum(cost.calls for cost in figures.by_op)
    known = timed if figures.step is None else figures.step["ops"]
    if timed and not 0.8 * timed <= known <= 1.25 * timed:
        figures.notes.append(
            f"The recorded step has {timed:,} ops, and what was found to be "
            f"the last step has {known:,}: that is what is said of bytes moved "
            "a step and of other budgets. Where a step is more than the "
            "program's optimizer shows, torch_chameleon.step() marks its end."
        )
    if len(recording.step_ends) < 2:
        figures.notes.append(
            "Fewer than two ends of steps were recorded, so all of the "
            "recording counts as one step."
        )
    if recording.decisions is None:
        figures.notes.append(
            "There were too many decisions to keep: record fewer steps to see "
            "where tensors were."
        )
    else:
        figures.tensors, figures.tensors_left_out = residency(recording)


def _add_changes(figures: Figures, recording: Recording, index: int) -> None:
    """Tries changes on the trace of the last step, if that is a slow one."""
    known: dict[str, Any] = {
        "fits": "swapped",
        "step_ns": figures.step_ns,
        "in_memory_ns": figures.compute_ns,
        "peak_bytes": max((row[1] for row in recording.memory), default=0),
        "to_fuse": recording.optimizers.to_fuse(),
        "states": recording.optimizers.states(),
    }
    if not advice.is_wanted(known):
        return
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "trace")
        _C.export_trace(index, trace)
        after = lives.peaks_after(
            trace, known["peak_bytes"], sum(known["states"].values())
        )
    after.pop("before", None)
    figures.changes = advice.advice(known | {"peaks_after": after})


def apart_from_reruns(timeline: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """The timeline with what its stalls have of re-runs as rows of their own.

    An op whose operands are made again begins late, but nothing waits then.

    Args:
        timeline: Rows of `_C.timeline`.
    """
    reruns = sorted((row[2], row[3]) for row in timeline if row[0] == "re-runs")
    apart: list[Sequence[Any]] = []
    for row in timeline:
        if row[0] != "stalls":
            apart.append(row)
            continue
        lane, op, at, end, *rest = row
        first = bisect.bisect_right(reruns, at, key=lambda run: run[1])
        for begin, stop in reruns[first:]:
            if begin >= end:
                break
            apart.append((lane, op, at, max(begin, at), *rest))
            apart.append((_RERAN, op, max(begin, at), min(stop, end), *rest))
            at = min(stop, end)
        apart.append((lane, op, at, end, *rest))
    return apart


def costs(rows: Iterable[tuple[str, Sequence[Any]]]) -> list[Cost]:
    """Sums rows of a timeline under their names, what stalls longest first.

    Args:
        rows: (name, row of `_C.timeline`).
    """
    sums: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0, 0, 0])
    for name, (lane, _, begin, end, _, what, *_rest) in rows:
        if lane == "compute":
            sums[name][0] += 1
            sums[name][1] += end - begin
        elif lane in ("stalls", _RERAN):
            sums[name][2 if lane == "stalls" else 3] += end - begin
            if what is not None:  # inside an op, whose time has it too
                sums[name][1] -= end - begin
    rows_of_costs = [Cost(name, *values) for name, values in sums.items()]
    return sorted(
        (cost for cost in rows_of_costs if cost.calls or cost.stall_ns),
        key=lambda cost: (-cost.stall_ns, -cost.compute_ns, cost.name),
    )


def kind_of(name: str) -> str:
    """A module's name with the numbers of lists left out.

    Args:
        name: Such as "blocks.3.up (backward)".

    Returns:
        Such as "blocks.*.up (backward)".
    """
    return re.sub(r"(?<![^.])\d+(?![^. ])", "*", name)


def link_use(
    copies: Iterable[Sequence[int]],
    begin_ns: int,
    end_ns: int,
    bytes_per_s: float,
) -> list[float]:
    """How much of one direction of the link was used, in parts of a step.

    Args:
        copies: (begin, end, bytes), in ns.
        begin_ns: Where the step begins.
        end_ns: Where it ends.
        bytes_per_s: What the direction can carry.

    Returns:
        Shares, from 0 to about 1.
    """
    if end_ns <= begin_ns or bytes_per_s <= 0:
        return []
    width = (end_ns - begin_ns) / _BINS
    carried = [0.0] * _BINS
    for begin, end, size in copies:
        if end <= begin_ns or begin >= end_ns:
            continue
        duration = max(end - begin, 1)
        first = max(int((begin - begin_ns) / width), 0)
        last = min(int((end - begin_ns) / width), _BINS - 1)
        for number in range(first, last + 1):
            left = max(begin, begin_ns + number * width)
            right = min(max(end, begin + 1), begin_ns + (number + 1) * width)
            carried[number] += size * max(right - left, 0.0) / duration
    room = bytes_per_s * width / 1e9
    return [size / room for size in carried]
