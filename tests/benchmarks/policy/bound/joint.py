"""The joint bound: bytes are moved, or made again by the ops that made them.

The linear program of `fluid`, in which what forward has made may also come back
by a fraction of its op, in any slot, as often as one likes, if that fraction of
the op's inputs is there. Whatever a real schedule with re-runs does is feasible
here. It is loose where re-runs are cheap: what they need at a time is looked at
only where a slot begins, and fractions of them are allowed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from .fluid import SCALE, SlotProgram, boundaries
from .step import Links, Step, Storage

_NODE_BYTES = 8 << 20  # smaller values of forward are free here


def joint_bound_ns(
    step: Step,
    budget_bytes: int,
    links: Links,
    may_rerun: Callable[[str], bool],
    slots: int = 20,
    largest: int = 4,
) -> float:
    """A lower bound on the duration of the step, re-runs included, in ns.

    Args:
        step: The cycle of ops, with their names.
        budget_bytes: Memory for all that is resident.
        links: Bandwidths.
        may_rerun: Whether an op of that name may be run again.
        slots: As `fluid_bound_ns` has it.
        largest: As `fluid_bound_ns` has it.

    Raises:
        ValueError: One op alone needs more than the budget.
    """
    step.check_feasible(budget_bytes)
    turn = int(step.live_bytes.argmax())
    program = SlotProgram(step, budget_bytes, boundaries(step, slots, largest))
    forward, others = [], []
    for storage in step.storages:
        made = storage.created is not None and storage.created <= turn
        (forward if made else others).append(storage)
    program.move(others)
    _add_nodes(program, step, forward, may_rerun)
    return max(step.compute_ns, program.least_ns(links))


@dataclasses.dataclass
class _Node:
    """A value of forward, from the slot that makes it to its last one.

    Attributes:
        storage: What the step does to it.
        size: In MB.
        first: The slot in which it is made; -1: before the first boundary.
        last: The last slot in which it, or what is made of it, is needed.
        kept: Per boundary, variable: resident, without a copy outside.
        copied: Per boundary, variable: resident, and a copy outside.
        fetched: Per slot, variable.
    """

    storage: Storage
    size: float
    first: int
    last: int
    kept: dict[int, int] = dataclasses.field(default_factory=dict)
    copied: dict[int, int] = dataclasses.field(default_factory=dict)
    fetched: dict[int, int] = dataclasses.field(default_factory=dict)


def _add_nodes(
    program: SlotProgram,
    step: Step,
    forward: list[Storage],
    may_rerun: Callable[[str], bool],
) -> None:
    def slot_of(op: int) -> int:
        return int(np.searchsorted(program.bounds, op, side="right")) - 1

    nodes = [
        _Node(
            storage,
            storage.size_bytes * SCALE,
            slot_of(storage.created),
            slot_of(storage.accesses[-1]),
        )
        for storage in forward
        if storage.size_bytes >= _NODE_BYTES
    ]
    made: dict[int, list[_Node]] = {}  # by op
    read: dict[int, list[_Node]] = {}  # by op
    for node in nodes:
        made.setdefault(node.storage.created, []).append(node)
        accesses = zip(node.storage.accesses, node.storage.reads, strict=True)
        for op, reads in accesses:
            if reads:
                read.setdefault(op, []).append(node)
    again = sorted(op for op in made if may_rerun(step.names[op]))

    def chain(op: int, before: float = np.inf) -> list[int]:
        """The op, and those that had finished its value in place by then."""
        if len(made[op]) > 1:
            return [op]  # who wants the other value needs no more
        storage = made[op][0].storage
        writes = zip(storage.accesses, storage.writes, strict=True)
        return [w for w, written in writes if written and w < before]

    def inputs(op: int, before: float = np.inf) -> list[_Node]:
        found = {id(n): n for w in chain(op, before) for n in read.get(w, ())}
        return [n for n in found.values() if n.storage.created < op]

    for op in reversed(again):
        last = max(result.last for result in made[op])
        for node in inputs(op):
            node.last = max(node.last, last)

    share: dict[tuple[int, int], int] = {}  # of an op that runs in a slot
    for op in again:
        for t in range(
            slot_of(op) + 1, max(node.last for node in made[op]) + 1
        ):
            part = share[op, t] = program.program.variable()
            ops = chain(op, program.bounds[t])
            program.extra[t].append(
                (part, float(step.durations_ns[ops].sum()) * SCALE)
            )
    for node in nodes:
        _add_node(program, node, share)
    for (op, t), part in share.items():
        for node in inputs(op, program.bounds[t]):
            there = ((v, -f) for v, f in _there(node, t, share))
            program.program.at_most(0.0, (part, node.size), *there)


def _there(node: _Node, t: int, share: dict) -> list[tuple[int, float]]:
    """What can be read of a node in a slot: variables with factors."""
    terms = [(node.kept[t], 1.0), (node.copied[t], 1.0), (node.fetched[t], 1.0)]
    part = share.get((node.storage.created, t))
    if part is not None:
        terms.append((part, node.size))
    return terms


def _add_node(program: SlotProgram, node: _Node, share: dict) -> None:
    linear, size = program.program, node.size
    count = len(program.bounds)
    written: list[tuple[int, float]] = []  # out so far, each byte once
    for t in range(node.first, node.last + 1):
        is_new = t == node.first
        if not is_new:
            node.fetched[t] = linear.variable(upper=size)
            program.incoming[t].append(node.fetched[t])
            copied = [(node.copied[t], 1.0), (node.fetched[t], 1.0)]
            linear.at_most(0.0, *copied, *((v, -f) for v, f in written))
            if _is_read(program, node, t):
                there = _there(node, t, share)
                linear.at_most(-size, *((v, -f) for v, f in there))
        if t == node.last:
            break
        out = linear.variable(upper=size)
        program.outgoing[t % count].append(out)
        node.kept[t + 1] = linear.variable(upper=size)
        node.copied[t + 1] = linear.variable(upper=size)
        after = [(node.kept[t + 1], 1.0), (node.copied[t + 1], 1.0)]
        program.resident[t + 1] += [v for v, _ in after]
        linear.at_most(size, *after)
        if int(program.bounds[t + 1]) in node.storage.accesses:
            linear.at_most(-size, *((v, -1.0) for v, _ in after))
        limit, before = (size, []) if is_new else (0.0, [(node.kept[t], -1.0)])
        if (part := share.get((node.storage.created, t))) is not None:
            before.append((part, -size))
        linear.at_most(limit, (node.kept[t + 1], 1.0), (out, 1.0), *before)
        had = [] if is_new else [(v, -f) for v, f in copied]
        linear.at_most(0.0, (node.copied[t + 1], 1.0), (out, -1.0), *had)
        written.append((out, 1.0))
        linear.at_most(size, *written)


def _is_read(program: SlotProgram, node: _Node, t: int) -> bool:
    """Whether an op of the slot reads the value."""
    storage, bounds = node.storage, program.bounds.tolist()
    end = bounds[t + 1] if t + 1 < len(bounds) else np.inf
    return any(
        reads and bounds[t] <= op < end
        for op, reads in zip(storage.accesses, storage.reads, strict=True)
    )
