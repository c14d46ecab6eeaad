"""One step of a run, as a cycle of ops over storages."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import gzip
import json
import pathlib

import numpy as np


@dataclasses.dataclass(frozen=True)
class Links:
    """Bandwidths in bytes a second: each way alone, and both together.

    While copies flow both ways each has half of what both may have together,
    and what one cannot use of it goes to the other.
    """

    bw_in: float
    bw_out: float
    bw_both: float

    def costs_ns(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Nanoseconds a byte in and a byte out: a time is at least both sums.

        Whatever flows when, a link is idle, in use one way, or in use both
        ways at the rates of above. So what can pass in a time is the convex
        hull of these three, which two lines bound.
        """
        half = self.bw_both / 2
        both_in = min(self.bw_in, max(half, self.bw_both - self.bw_out))
        both_out = min(self.bw_out, max(half, self.bw_both - self.bw_in))
        return (
            (1e9 / self.bw_in, 1e9 * (1 - both_in / self.bw_in) / both_out),
            (1e9 * (1 - both_out / self.bw_out) / both_in, 1e9 / self.bw_out),
        )

    def time_ns(self, bytes_in, bytes_out):
        """The shortest time in which so many bytes can pass."""
        return np.maximum(
            *(a * bytes_in + b * bytes_out for a, b in self.costs_ns())
        )


@dataclasses.dataclass
class Storage:
    """What happens to one storage in a step.

    Attributes:
        size_bytes: Its size.
        accesses: Ops that touch it, ascending.
        reads: For each of them, whether the op needs the value before it.
        writes: For each of them, whether the op changes the value.
        created: The op that created it, or None: it lives in every step.
        freed: The op after which it is gone, or None.
    """

    size_bytes: int
    accesses: list[int] = dataclasses.field(default_factory=list)
    reads: list[bool] = dataclasses.field(default_factory=list)
    writes: list[bool] = dataclasses.field(default_factory=list)
    created: int | None = None
    freed: int | None = None

    @property
    def persistent(self) -> bool:
        """Whether it lives from step to step."""
        return self.created is None

    def alive_before(self, op: int) -> bool:
        """Whether it holds bytes when `op` starts."""
        if self.created is None:
            return True
        return self.created < op <= self.freed

    def next_access(self, op: int, ops: int) -> tuple[int, bool] | None:
        """The first access at or after `op`, and whether it reads.

        An access in the next step of a persistent storage counts from `ops`.
        """
        at = bisect.bisect_left(self.accesses, op)
        if at < len(self.accesses):
            return self.accesses[at], self.reads[at]
        if self.persistent and self.accesses:
            return self.accesses[0] + ops, self.reads[0]
        return None

    def last_write(self, op: int, ops: int) -> int | None:
        """The last op before `op` that wrote; in the step before: negative."""
        written = self._written
        at = bisect.bisect_left(written, op)
        if at > 0:
            return written[at - 1]
        if self.persistent and written:
            return written[-1] - ops
        return None

    @functools.cached_property
    def _written(self) -> list[int]:
        return [
            op
            for op, writes in zip(self.accesses, self.writes, strict=True)
            if writes
        ]


class Step:
    """A cycle of ops.

    Args:
        durations_ns: Of each op.
        storages: All storages that the ops touch.
        names: Of each op; None: they have none.

    Raises:
        ValueError: A storage is created but not freed in the step, or freed
            but not created: the step is no cycle.
    """

    def __init__(
        self,
        durations_ns: list[int],
        storages: list[Storage],
        names: list[str] | None = None,
    ) -> None:
        self.durations_ns = np.array(durations_ns, dtype=np.float64)
        self.ops = len(durations_ns)
        self.storages = storages
        self.names = names or [""] * self.ops
        for number, storage in enumerate(storages):
            if (storage.created is None) != (storage.freed is None):
                raise ValueError(
                    f"storage {number} is created or freed in the step, but "
                    "not both; a step must be a cycle"
                )
        self.starts_ns = np.concatenate(([0.0], np.cumsum(self.durations_ns)))
        self.compute_ns = float(self.starts_ns[-1])

    @classmethod
    def read(cls, path: str | pathlib.Path) -> Step:
        """Reads a trace of JSON lines, perhaps gzipped; its first step.

        Raises:
            ValueError: A line is no op of a trace.
        """
        path = pathlib.Path(path)
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt") as lines:
            records = []
            for number, line in enumerate(lines, 1):
                record = json.loads(line)
                if "step" in record:
                    break
                if "op" in record:
                    records.append(record)
                elif number > 1:
                    raise ValueError(f"{path}:{number}: neither op nor step")
        return cls.from_records(records)

    @classmethod
    def from_records(cls, records: list[dict]) -> Step:
        """From ops with the fields `dur_ns`, `in`, `out`, `write`, `free`.

        Perhaps also `over`, keys of `in` that are overwritten unread, and
        `workspace`, bytes that the op holds beside all its operands.
        """
        storages: dict[object, Storage] = {}
        for op, record in enumerate(records):
            written = set(record["write"])
            created = dict(record["out"])
            unread = created.keys() | set(record.get("over", ()))
            operands = dict(record["in"]) | created
            for key, size_bytes in operands.items():
                storage = storages.setdefault(key, Storage(size_bytes))
                storage.accesses.append(op)
                storage.reads.append(key not in unread)
                storage.writes.append(key in written or key in created)
                if key in created:
                    storage.created = op
            for key in written - operands.keys():
                storage = storages[key]  # overwritten: its old value is dead
                storage.accesses.append(op)
                storage.reads.append(False)
                storage.writes.append(True)
            if record.get("workspace"):
                storages["workspace", op] = Storage(
                    record["workspace"], [op], [False], [True], op, op
                )
            for key in record["free"]:
                storages[key].freed = op
        return cls(
            [record["dur_ns"] for record in records],
            list(storages.values()),
            [record.get("op", "") for record in records],
        )

    @functools.cached_property
    def created_bytes(self) -> np.ndarray:
        """Bytes that each op creates."""
        created = np.zeros(self.ops)
        for storage in self.storages:
            if storage.created is not None:
                created[storage.created] += storage.size_bytes
        return created

    @functools.cached_property
    def live_bytes(self) -> np.ndarray:
        """Bytes alive while each op runs."""
        change = np.zeros(self.ops + 1)
        for storage in self.storages:
            first, last = 0, self.ops - 1
            if not storage.persistent:
                first, last = storage.created, storage.freed
            change[first] += storage.size_bytes
            change[last + 1] -= storage.size_bytes
        return np.cumsum(change[:-1])

    @functools.cached_property
    def operand_bytes(self) -> np.ndarray:
        """Bytes that each op itself touches, what it creates included."""
        touched = np.zeros(self.ops)
        for storage in self.storages:
            touched[storage.accesses] += storage.size_bytes
        return touched

    @property
    def peak_bytes(self) -> int:
        """The most bytes alive at once."""
        return int(self.live_bytes.max())

    def check_feasible(self, budget_bytes: int) -> None:
        """Raises ValueError where one op alone needs more than the budget."""
        op = int(self.operand_bytes.argmax())
        if self.operand_bytes[op] > budget_bytes:
            raise ValueError(
                f"op {op} alone touches {int(self.operand_bytes[op])} bytes, "
                f"more than the budget of {budget_bytes}"
            )
