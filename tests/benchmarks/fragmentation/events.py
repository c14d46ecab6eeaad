"""A trace as an allocator sees it: what is allocated and freed, in order."""

from __future__ import annotations

import dataclasses
import gzip
import json
import pathlib

_HERE = pathlib.Path(__file__).resolve().parent
_FILES = [
    *sorted((_HERE.parent / "policy" / "traces").glob("*.jsonl.gz")),
    *sorted((_HERE / "traces").glob("*.jsonl.gz")),
]
TRACES = {path.name.removesuffix(".jsonl.gz"): path for path in _FILES}
ROUNDED = 512  # bytes, as all allocators here do
# As hbm_use.cpp has them; whole rounds.
FIRST_STEPS = 6
STEADY_STEPS = 12


@dataclasses.dataclass(frozen=True)
class Trace:
    """A recorded training.

    Attributes:
        text: JSON lines, as `torch_chameleon.profiler.export_trace` writes.
        ops: How many one round has.
        steps: How many steps that is.
        steady_steps: How many of the last steps in `events` figures are of.
        events: Lines for torch_allocator.cpp: several rounds.
        peak_bytes: The most that is live at once, each storage rounded up to
            512 bytes: nothing smaller can hold it.
    """

    text: str
    ops: int
    steps: int
    steady_steps: int
    events: str
    peak_bytes: int


def read(path: pathlib.Path) -> Trace:
    """A trace from its file."""
    return from_text(gzip.decompress(path.read_bytes()).decode())


def from_text(text: str) -> Trace:
    """The same from its lines."""
    rows = [json.loads(line) for line in text.splitlines()[1:]]
    steps = sum("step" in row for row in rows)
    steady = -(-STEADY_STEPS // steps)
    live = _Live({number for row in rows for number, _ in row.get("out", ())})
    for number, size in _there_before(rows).items():
        live.allocate(number, size)
    for _ in range(-(-FIRST_STEPS // steps) + steady):
        for row in rows:
            live.run(row)
    return Trace(
        text,
        len(rows) - steps,
        steps,
        steady * steps,
        live.events,
        live.peak_bytes,
    )


def _there_before(rows: list[dict]) -> dict[int, int]:
    """Storages that are live where a round begins, with their bytes.

    In the order in which the round uses them: those that no op creates, and
    those that die before the op that creates their successor.
    """
    sizes = {n: size for row in rows for n, size in row.get("out", ())}
    found: dict[int, int] = {}
    created: set[int] = set()
    for row in rows:
        used = dict(row.get("in", ()))
        used |= {n: sizes[n] for n in row.get("free", ()) if n in sizes}
        created |= {number for number, _ in row.get("out", ())}
        for number, size in used.items():
            if number not in created:
                found.setdefault(number, size)
    return found


class _Live:
    """Storages that live, as ops come and go."""

    def __init__(self, created: set[int]) -> None:
        self._created = created  # by an op; all others live on
        self._lines: list[str] = []
        self._sizes: dict[int, int] = {}
        self._bytes = self.peak_bytes = 0

    @property
    def events(self) -> str:
        return "\n".join(self._lines) + "\n"

    def allocate(self, number: int, size: int) -> None:
        """A storage begins; one of the same number makes room for it."""
        self.free(number)
        if size == 0:
            return
        self._lines.append(f"a {number} {size}")
        self._sizes[number] = -(-size // ROUNDED) * ROUNDED
        self._bytes += self._sizes[number]
        self.peak_bytes = max(self.peak_bytes, self._bytes)

    def free(self, number: int) -> None:
        """It ends, where it is live."""
        if number in self._sizes:
            self._lines.append(f"f {number}")
            self._bytes -= self._sizes.pop(number)

    def run(self, row: dict) -> None:
        """An op, or the end of a step."""
        if "step" in row:
            self._lines.append("s")
            return
        for number, size in row["out"]:
            self.allocate(number, size)
        if "workspace" in row:
            self.allocate(0, row["workspace"])
            self.free(0)
        for number in row["free"]:
            if number in self._created:
                self.free(number)
