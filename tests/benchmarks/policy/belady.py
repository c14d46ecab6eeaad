"""Bytes that Belady's policy moves: the yardstick for traffic.

Whole storages, fetched when an op needs them; the victim is the one whose next
use is farthest. What was written since it was last saved is saved first.
"""

from __future__ import annotations

import heapq

from bound import Step

_MOST_STEPS = 64  # until steps repeat, which most do at once


def belady_bytes(step: Step, budget_bytes: int) -> tuple[float, float]:
    """Bytes fetched and written back in a steady step.

    Steps are run until one begins as an earlier one did; the bytes are means
    over those in between.

    Args:
        step: The cycle of ops.
        budget_bytes: Memory for all that is resident.

    Raises:
        ValueError: One op alone needs more than the budget.
    """
    step.check_feasible(budget_bytes)
    paging = _Paging(step, budget_bytes)
    seen: dict[tuple, tuple[int, int, int]] = {}
    for turn in range(_MOST_STEPS):
        state, now = paging.state(), (turn, *paging.moved)
        first = seen.setdefault(state, now)
        if first != now:
            break
        paging.run(turn)
    turns = now[0] - first[0]
    if turns == 0:
        turns, first = now[0], (0, 0, 0)
    return (now[1] - first[1]) / turns, (now[2] - first[2]) / turns


class _Paging:
    def __init__(self, step: Step, budget_bytes: int) -> None:
        self.step = step
        self.free = budget_bytes
        count = len(step.storages)
        self.resident = [False] * count
        self.dirty = [False] * count
        self.next = [0] * count
        self.heap: list[tuple[int, int]] = []  # minus the next use, storage
        self.moved = [0, 0]
        self.uses: list[list[tuple[int, bool, bool]]] = [
            [] for _ in range(step.ops)
        ]
        self.dying: list[list[int]] = [[] for _ in range(step.ops)]
        for number, storage in enumerate(step.storages):
            for op, reads, writes in zip(
                storage.accesses, storage.reads, storage.writes, strict=True
            ):
                self.uses[op].append((number, reads, writes))
            if storage.freed is not None:
                self.dying[storage.freed].append(number)

    def state(self) -> tuple[bytes, bytes]:
        """What the next step depends on."""
        return bytes(self.resident), bytes(self.dirty)

    def run(self, turn: int) -> None:
        for op in range(self.step.ops):
            self._run_op(op, turn * self.step.ops + op)

    def _run_op(self, op: int, now: int) -> None:
        pinned = {number for number, _, _ in self.uses[op]}
        for number, reads, writes in self.uses[op]:
            if not self.resident[number]:
                self._place(number, pinned)
                if reads:
                    self.moved[0] += self.step.storages[number].size_bytes
                    self.dirty[number] = False
            self.dirty[number] = self.dirty[number] or writes
        for number in pinned:
            storage = self.step.storages[number]
            use = storage.next_access(op + 1, self.step.ops)
            self.next[number] = (
                now + self.step.ops * 9 if use is None else now - op + use[0]
            )
            heapq.heappush(self.heap, (-self.next[number], number))
        for number in self.dying[op]:
            if self.resident[number]:
                self.resident[number] = False
                self.free += self.step.storages[number].size_bytes
            self.dirty[number] = False

    def _place(self, number: int, pinned: set[int]) -> None:
        size = self.step.storages[number].size_bytes
        kept = []
        while self.free < size:
            key, victim = heapq.heappop(self.heap)
            if not self.resident[victim] or -key != self.next[victim]:
                continue
            if victim in pinned:
                kept.append((key, victim))
                continue
            self.resident[victim] = False
            self.free += self.step.storages[victim].size_bytes
            if self.dirty[victim]:
                self.moved[1] += self.step.storages[victim].size_bytes
                self.dirty[victim] = False
        for entry in kept:
            heapq.heappush(self.heap, entry)
        self.free -= size
        self.resident[number] = True
