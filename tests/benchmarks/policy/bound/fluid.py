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

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from .step import Links, Step, Storage

_MIN_BYTES = 1 << 18  # smaller ones are free: they only make it slower


def fluid_bound_ns(
    step: Step,
    budget_bytes: int,
    links: Links,
    slots: int = 40,
    largest: int = 60,
) -> float:
    """A lower bound on the duration of the step, in nanoseconds.

    Args:
        step: The cycle of ops.
        budget_bytes: Memory for all that is resident.
        links: Bandwidths.
        slots: In how many stretches of equal time a slot begins at the op with
            the most bytes alive.
        largest: At how many further ops, those with the most bytes of
            operands, a slot begins too: what such an op has resident leaves
            the least room for all else.

    Raises:
        ValueError: One op alone needs more than the budget.
    """
    step.check_feasible(budget_bytes)
    bounds = boundaries(step, slots, largest)
    return max(step.compute_ns, _solve(step, budget_bytes, links, bounds))


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


class _Program:
    """Rows and columns of the linear program, as they are found."""

    def __init__(self) -> None:
        self.costs: list[float] = []
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.entries: list[tuple[int, int, float]] = []
        self.limits: list[float] = []

    def variable(self, lower=0.0, upper=np.inf, cost=0.0) -> int:
        self.costs.append(cost)
        self.lower.append(lower)
        self.upper.append(upper)
        return len(self.costs) - 1

    def at_most(self, limit: float, *terms: tuple[int, float]) -> None:
        row = len(self.limits)
        self.limits.append(limit)
        self.entries += [(row, column, factor) for column, factor in terms]

    def solve(self):
        rows, columns, factors = zip(*self.entries, strict=True)
        matrix = coo_array(
            (factors, (rows, columns)),
            shape=(len(self.limits), len(self.costs)),
        ).tocsr()
        return linprog(
            self.costs,
            A_ub=matrix,
            b_ub=self.limits,
            bounds=np.column_stack((self.lower, self.upper)),
            method="highs",
        )


def _solve(
    step: Step, budget_bytes: int, links: Links, bounds: np.ndarray
) -> float:
    """The least total of the slots' times, in ns."""
    scale = 1e-6  # megabytes and milliseconds keep the numbers near one
    count = len(bounds)
    classes: dict[bytes, list] = {}
    room = np.full(count, float(budget_bytes)) - step.created_bytes[bounds]
    for storage in step.storages:
        if storage.size_bytes < _MIN_BYTES:
            continue
        pattern = _pattern(step, storage, bounds)
        for t, op in enumerate(bounds.tolist()):
            overwritten = op in storage.accesses and storage.created != op
            if overwritten and not pattern.needed[t]:
                room[t] -= storage.size_bytes
        if pattern.needed.any():
            entry = classes.setdefault(pattern.key(), [pattern, 0])
            entry[1] += storage.size_bytes

    program = _Program()
    starts = step.starts_ns[bounds]
    compute = (np.append(starts[1:], starts[0]) - starts) % step.compute_ns
    if count == 1:
        compute[0] = step.compute_ns
    slots = [program.variable(lower=ns * scale, cost=1.0) for ns in compute]
    resident = defaultdict(list)
    incoming = defaultdict(list)
    outgoing = defaultdict(list)
    for pattern, size_bytes in classes.values():
        _add_class(
            program,
            pattern,
            size_bytes * scale,
            (resident, incoming, outgoing),
        )
    for t in range(count):
        program.at_most(room[t] * scale, *((v, 1.0) for v in resident[t]))
        # time >= bytes / bandwidth; MB/ms is GB/s
        for moved, rate in (
            (incoming[t], links.bw_in),
            (outgoing[t], links.bw_out),
            (incoming[t] + outgoing[t], links.bw_both),
        ):
            program.at_most(
                0.0,
                (slots[t], -1.0),
                *((variable, 1e9 / rate) for variable in moved),
            )
    solution = program.solve()
    if solution.status == 2:
        raise ValueError(
            f"no schedule fits into the budget of {budget_bytes} bytes"
        )
    if not solution.success:
        raise RuntimeError(f"the linear program: {solution.message}")
    return solution.fun / scale


def _add_class(program, pattern, size, sums) -> None:
    resident, incoming, outgoing = sums
    count = len(pattern.needed)
    held = {}  # at boundary t: resident
    copied = {}  # at boundary t: written out since the last write
    fetched = {}  # in slot t
    for t in np.flatnonzero(pattern.needed):
        low = size if pattern.forced[t] else 0.0
        held[t] = program.variable(lower=low, upper=size)
        fetched[t] = program.variable(upper=size)
        resident[t].append(held[t])
        incoming[t].append(fetched[t])
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
            outgoing[t].append(written_out)
            before = [(written_out, -1.0)]
            if not pattern.written[t]:
                before.append((copied[t], -1.0))
            program.at_most(0.0, (copied[after], 1.0), *before)
        if not pattern.written[t]:
            program.at_most(
                0.0, (held[after], 1.0), (held[t], -1.0), (fetched[t], -1.0)
            )
