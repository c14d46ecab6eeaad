"""Where tensors were in a recorded step, op by op."""

import dataclasses
from typing import Any

from torch_chameleon._report.recording import Recording

_TENSORS = 240  # rows of the map


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


_STATES = {
    "resident": "hbm",
    "host": "host",
    "evicting": "host",
    "fetching": "hbm",
    "dropped": "dropped",
}
_ARRIVES = {"pin", "fault", "fetch", "adopt", "rerun"}
_LEAVES = {"evict", "victim"}


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
        if not self.state or op == self.since:
            return
        begin = self.since
        last = self.spans[-1] if self.spans else None
        if last and last.end == begin and last.state == self.state:
            begin = self.spans.pop().begin  # away and back before one op
        self.spans.append(Span(begin, op, self.state))


def residency(recording: Recording) -> tuple[list[Tensor], int]:
    """Where the tensors' bytes were in the last step, op by op.

    Args:
        recording: With decisions.

    Returns:
        Of each kind the tensors that take the most room for the longest time
        (bytes times ops), in order of birth, and how many were left out.
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

    def room(life: _Life) -> int:
        return life.bytes * sum(span.end - span.begin for span in life.spans)

    rows.sort(key=room, reverse=True)
    # As many of either kind, as far as there are: the largest are often kept.
    half = _TENSORS // 2
    made = [life for life in rows if life.kind == "made"]
    kept = [life for life in rows if life.kind == "kept"]
    made_shown = made[: max(half, _TENSORS - len(kept))]
    shown = kept[: _TENSORS - len(made_shown)] + made_shown
    shown.sort(
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
        for life in shown
    ], len(rows) - len(shown)
