"""The fluid bound: a linear program over slots of the step.

Bytes may be moved in any fraction and at any time within a slot, and memory is
looked at only where a slot begins. Whatever a real schedule does is feasible
here, so the least total of the slots' times is a lower bound. Slots begin at
the ops with the most bytes alive: there memory binds.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from .linear_program import LinearProgram
from .step import Links, Step, Storage

SCALE = 1e-6  # bytes to MB, ns to ms
_MIN_BYTES = 1 << 18  # smaller ones are free: they only make it slower

_FEW_OPS = 1000  # each of them matters, and finer slots are quick


def fluid_bound_ns(
    step: Step,
    budget_bytes: int,
    links: Links,
    slots: int | None = None,
    largest: int | None = None,
) -> float:
    """A lower bound on the duration of the step, in nanoseconds.

    Args:
        step: The cycle of ops.
        budget_bytes: Memory for all that is resident.
        links: Bandwidths.
        slots: In how many stretches of equal time a slot begins at the op with
            the most bytes alive. Default: 40, or 200 among fewer than 1,000
            ops.
        largest: At how many further ops, those with the most bytes of
            operands, a slot begins too: what such an op has resident leaves
            the least room for all else. Default: 60, or 100.

    Raises:
        ValueError: One op alone needs more than the budget.
    """
    step.check_feasible(budget_bytes)
    few = step.ops < _FEW_OPS
    if slots is None:
        slots = 200 if few else 40
    if largest is None:
        largest = 100 if few else 60
    bounds = boundaries(step, slots, largest)
    program = SlotProgram(step, budget_bytes, bounds)
    program.move(step.storages)
    return max(step.compute_ns, program.least_ns(links))


def boundaries(step: Step, slots: int, largest: int) -> np.ndarray:
    """The ops at which slots begin, ascending."""
    edges = np.searchsorted(
        step.starts_ns[:-1], np.linspace(0, step.compute_ns, slots + 1)
    )
    busiest = [
        int(begin + step.live_bytes[begin:end].argmax())
        for begin, end in itertools.pairwise(edges)
        if end > begin
    ]
    by_operands = np.argsort(-step.operand_bytes, kind="stable")[:largest]
    return np.unique(np.concatenate((busiest, by_operands))).astype(int)


@dataclasses.dataclass
class _Pattern:
    """What the slots see of a storage; equal ones are one."""

    needed: np.ndarray  # at each boundary: its value is read later
    forced: np.ndarray  # at each boundary: the op there reads it
    used: np.ndarray  # in each slot: its value from before is read
    written: np.ndarray  # in each slot: it gets another value
    frozen: bool  # never written: a copy outside exists for ever

    def key(self) -> bytes:
        return np.packbits(
            np.concatenate((self.needed, self.forced, self.used, self.written))
        ).tobytes() + bytes((self.frozen,))


def _pattern(step: Step, storage: Storage, bounds: np.ndarray) -> _Pattern:
    count = len(bounds)
    pattern = _Pattern(
        *(np.zeros(count, dtype=bool) for _ in range(4)),
        frozen=storage.persistent and not any(storage.writes),
    )
    for t, op in enumerate(bounds.tolist()):
        if not storage.alive_before(op):
            continue
        access = storage.next_access(op, step.ops)
        if access is None or not access[1]:
            continue
        pattern.needed[t] = True
        pattern.forced[t] = access[0] == op
        end = bounds[t + 1] if t + 1 < count else bounds[0] + step.ops
        pattern.used[t] = access[0] < end
    for op, writes in zip(storage.accesses, storage.writes, strict=True):
        if writes:
            pattern.written[np.searchsorted(bounds, op, side="right") - 1] = 1
    return pattern


class SlotProgram:
    """The least time of the slots, when bytes may move in any fraction.

    Megabytes and milliseconds keep its numbers near one.

    Attributes:
        program: The linear program.
        bounds: The ops at which slots begin; the last slot goes on with the
            next step up to the first of them.
        compute: Per slot, what its ops take, ms.
        resident: Per boundary, variables of bytes that are resident, MB.
        incoming: Per slot, variables of bytes that come in, MB.
        outgoing: Per slot, variables of bytes that go out, MB.
        extra: Per slot, variables of further compute time, with a factor.
    """

    def __init__(
        self, step: Step, budget_bytes: int, bounds: np.ndarray
    ) -> None:
        self.program = LinearProgram()
        self.bounds = bounds
        self._step = step
        self._budget_bytes = budget_bytes
        self._room = float(budget_bytes) - step.created_bytes[bounds]
        starts = step.starts_ns[bounds]
        compute = (np.append(starts[1:], starts[0]) - starts) % step.compute_ns
        if len(bounds) == 1:
            compute[0] = step.compute_ns
        self.compute = compute * SCALE
        self.resident: dict[int, list[int]] = defaultdict(list)
        self.incoming: dict[int, list[int]] = defaultdict(list)
        self.outgoing: dict[int, list[int]] = defaultdict(list)
        self.extra: dict[int, list[tuple[int, float]]] = defaultdict(list)

    def move(self, storages: Iterable[Storage]) -> None:
        """These are kept or moved."""
        classes: dict[bytes, list] = {}
        for storage in storages:
            if storage.size_bytes < _MIN_BYTES:
                continue
            pattern = _pattern(self._step, storage, self.bounds)
            for t, op in enumerate(self.bounds.tolist()):
                overwritten = op in storage.accesses and storage.created != op
                if overwritten and not pattern.needed[t]:
                    self._room[t] -= storage.size_bytes
            if pattern.needed.any():
                entry = classes.setdefault(pattern.key(), [pattern, 0])
                entry[1] += storage.size_bytes
        for pattern, size_bytes in classes.values():
            self._add_class(pattern, size_bytes * SCALE)

    def least_ns(self, links: Links) -> float:
        """The least total of the slots' times, in ns.

        Raises:
            ValueError: Nothing fits into the budget.
        """
        program = self.program
        for t, compute in enumerate(self.compute):
            slot = program.variable(lower=compute, cost=1.0)
            program.at_most(-compute, (slot, -1.0), *self.extra[t])
            program.at_most(
                self._room[t] * SCALE, *((v, 1.0) for v in self.resident[t])
            )
            # ns a byte is ms a MB
            for in_ns, out_ns in links.costs_ns():
                program.at_most(
                    0.0,
                    (slot, -1.0),
                    *((v, in_ns) for v in self.incoming[t]),
                    *((v, out_ns) for v in self.outgoing[t]),
                )
        least = program.least()
        if least is None:
            raise ValueError(
                "no schedule fits into the budget of "
                f"{self._budget_bytes} bytes"
            )
        return least / SCALE

    def _add_class(self, pattern: _Pattern, size: float) -> None:
        program = self.program
        count = len(pattern.needed)
        held = {}  # at boundary t: resident
        copied = {}  # at boundary t: written out since the last write
        fetched = {}  # in slot t
        for t in np.flatnonzero(pattern.needed):
            low = size if pattern.forced[t] else 0.0
            held[t] = program.variable(lower=low, upper=size)
            fetched[t] = program.variable(upper=size)
            self.resident[t].append(held[t])
            self.incoming[t].append(fetched[t])
            if pattern.used[t]:
                program.at_most(-size, (held[t], -1.0), (fetched[t], -1.0))
            if not pattern.frozen:
                copied[t] = program.variable(upper=size)
                program.at_most(-size, (held[t], -1.0), (copied[t], -1.0))
        for t in range(count):
            after = (t + 1) % count
            if not pattern.needed[after]:
                continue
            if not pattern.frozen:
                written_out = program.variable(upper=size)
                self.outgoing[t].append(written_out)
                before = [(written_out, -1.0)]
                if not pattern.written[t]:
                    before.append((copied[t], -1.0))
                program.at_most(0.0, (copied[after], 1.0), *before)
            if not pattern.written[t]:
                program.at_most(
                    0.0, (held[after], 1.0), (held[t], -1.0), (fetched[t], -1.0)
                )
