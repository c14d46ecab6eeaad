"""The numbers of a report, gathered from a recording. Nothing is drawn here."""

import collections
import dataclasses
import json
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

from torch_chameleon import _C, _build_info
from torch_chameleon._report.recording import Recording

GIB = 1 << 30
_CURVE_POINTS = 7
_BINS = 240  # of the link over time
_TENSORS = 240  # rows of the map


@dataclasses.dataclass(frozen=True)
class Cost:
    """What an op or a module costs in the step."""

    name: str
    calls: int
    compute_ns: int
    stall_ns: int  # compute waited for bytes before it, or for room inside


@dataclasses.dataclass(frozen=True)
class Span:
    """Where a tensor's bytes were, from one op to another."""

    begin: int  # ops of the step
    end: int
    state: str  # "hbm" | "host" | "dropped"


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A row of the map."""

    name: str
    kind: str  # "kept" (lives from step to step) | "made" (in the step)
    bytes: int
    moved_bytes: int  # in and out, in the step
    spans: tuple[Span, ...]


@dataclasses.dataclass(frozen=True)
class Budget:
    """What another budget would do, by the planner's model."""

    bytes: int
    step_ns: int | None  # None: it does not fit
    bytes_moved: int


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
    step_ops: int = 0
    step_ns: int = 0
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
    notes: list[str] = dataclasses.field(default_factory=list)


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
    except RuntimeError:
        figures.notes.append(
            "No step has ended yet. Run a few, and mark their ends with "
            "torch_chameleon.step()."
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
    return figures


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
    descriptor, path = tempfile.mkstemp(suffix=".jsonl")
    os.close(descriptor)
    try:
        _C.export_trace(index, path)
        with open(path) as lines:
            header = json.loads(lines.readline())
        figures.link_in_bytes_per_s = header.get("bw_in", 0)
        figures.link_out_bytes_per_s = header.get("bw_out", 0)
        whole = _C.what_if(path, [], 1.0)
        figures.peak_bytes = whole["peak_bytes"]
        figures.compute_ns = whole["compute_ns"]
        asked = budgets_to_ask(
            figures.stats["hbm_budget"],
            whole["peak_bytes"],
            whole["largest_op_bytes"],
        )
        steps = _C.what_if(path, asked, 1.0)["steps"]
    except (RuntimeError, ValueError) as error:
        figures.notes.append(f"No forecast for other budgets: {error}")
        return
    finally:
        os.unlink(path)
    for budget, step in zip(asked, steps, strict=True):
        figures.budgets.append(
            Budget(budget, None, 0)
            if step is None
            else Budget(
                budget,
                round(step["duration_ns"]),
                step["bytes_in"] + step["bytes_out"],
            )
        )


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
    ops = [row for row in recording.timeline if first < row[6] <= last]
    if ops:
        begin_ns = min(row[2] for row in ops)
        end_ns = max(row[3] for row in ops)
        figures.step_ns = end_ns - begin_ns
        figures.by_op = costs((row[1] or row[0], row) for row in ops)
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


def costs(rows: Iterable[tuple[str, Sequence[Any]]]) -> list[Cost]:
    """Sums rows of a timeline under their names, what stalls longest first.

    Args:
        rows: (name, row of `_C.timeline`).
    """
    sums: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0, 0])
    for name, (lane, _, begin, end, _, what, *_rest) in rows:
        if lane == "compute":
            sums[name][0] += 1
            sums[name][1] += end - begin
        elif lane == "stalls":
            sums[name][2] += end - begin
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


# ---- where tensors were ----------------------------------------------------

_STATES = {
    "resident": "hbm",
    "host": "host",
    "evicting": "host",
    "fetching": "hbm",
    "dropped": "dropped",
}
_ARRIVES = {"pin", "fault", "fetch", "adopt", "rerun"}
_LEAVES = {"release", "victim"}


class _Life:
    """One tensor, while the record is read in order."""

    def __init__(self, name: str, kind: str, size: int, state: str) -> None:
        self.name = name
        self.kind = kind
        self.bytes = size
        self.moved_bytes = 0
        self.state = state
        self.since = 0
        self.spans: list[Span] = []

    def become(self, state: str, op: int) -> None:
        if state == self.state:
            return
        self.close(op)
        self.state, self.since = state, op

    def close(self, op: int) -> None:
        if self.state and op > self.since:
            self.spans.append(Span(self.since, op, self.state))


def residency(recording: Recording) -> tuple[list[Tensor], int]:
    """Where the tensors' bytes were in the last step, op by op.

    Args:
        recording: With decisions.

    Returns:
        The tensors that take the most room for the longest time (bytes times
        ops), in order of birth, and how many were left out.
    """
    assert recording.decisions is not None
    first, last = recording.last_step()
    named = _names(recording)
    made_by = {
        row[6]: f"{row[1]} in {recording.where(row[6])}"
        if recording.where(row[6])
        else row[1]
        for row in recording.timeline
        if row[1]
    }
    lives = {
        block["identity"]: _Life(
            named.get(block["identity"], "tensor"),
            "kept",
            block["bytes"],
            _STATES.get(block["state"], ""),
        )
        for block in recording.blocks
    }
    # Births and deaths first: what is decided for a tensor comes after its
    # birth, and a death is seen after the op that it follows.
    steps: list[tuple[int, int, tuple[Any, ...]]] = []
    for event in recording.events:
        if event["event"] != "oom":
            order = 0 if event["event"] == "alloc" else 2
            steps.append((event["call"], order, (event,)))
    for decision in recording.decisions:
        if decision[2]:
            steps.append((decision[0], 1, decision))
    steps.sort(key=lambda step: step[:2])
    done: list[_Life] = []
    for call, order, what in steps:
        if call > last:
            break
        op = max(call - first, 0)
        if order == 0:
            identity = what[0]["identity"]
            name = named.get(identity) or made_by.get(call) or "tensor"
            born = _Life(name, "made", what[0]["bytes"], "")
            born.since = op
            if call <= first:
                born.kind = "kept"
            lives[identity] = born
        elif order == 2:
            dead = lives.pop(what[0]["identity"], None)
            if dead is not None and op > 0:
                dead.close(op)
                done.append(dead)
        else:
            _decide(lives.get(what[2]), what, op)
    for life in lives.values():
        life.close(last - first)
        done.append(life)
    return _largest(done)


def _decide(life: _Life | None, decision: tuple[Any, ...], op: int) -> None:
    if life is None:
        return
    _, kind, _, _, size = decision
    if kind in _ARRIVES:
        life.become("hbm", op)
        if op > 0 and kind in ("fault", "fetch"):
            life.moved_bytes += size
    elif kind == "write_back":  # and it stays where it is
        life.moved_bytes += size if op > 0 else 0
    elif kind in _LEAVES:
        life.become("host", op)
        life.moved_bytes += size if op > 0 else 0
    elif kind == "drop":
        life.become("dropped", op)


def _names(recording: Recording) -> dict[int, str]:
    """Names by identity, of what has one."""
    return {
        block["identity"]: recording.names[block["address"]]
        for block in recording.last_blocks
        if block["address"] in recording.names
    }


def _largest(lives: list[_Life]) -> tuple[list[Tensor], int]:
    rows = [life for life in lives if life.spans]
    for life in rows:
        life.spans = [span for span in life.spans if span.end > span.begin]

    def room(life: _Life) -> int:
        return life.bytes * sum(span.end - span.begin for span in life.spans)

    rows.sort(key=room, reverse=True)
    kept, left_out = rows[:_TENSORS], max(len(rows) - _TENSORS, 0)
    kept.sort(
        key=lambda life: (
            life.kind != "kept",
            life.spans[0].begin,
            -room(life),
            life.name,
        )
    )
    return [
        Tensor(
            life.name,
            life.kind,
            life.bytes,
            life.moved_bytes,
            tuple(life.spans),
        )
        for life in kept
    ], left_out
