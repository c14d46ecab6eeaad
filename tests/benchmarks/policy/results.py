"""The benchmark's results: a file of JSON lines, a point each."""

from __future__ import annotations

import json
import pathlib

Key = tuple[str, str, float, str]  # workload, GPU, k (0: unlimited), policy
HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE / "results.jsonl"
NEAR_SHARE = 0.05  # how near the mean a step counts as steady
TOLERANCE = 1e-4  # of the linear program, and of times in whole ns


def key_of(row: dict) -> Key:
    """Which point a row is of."""
    return (row["workload"], row["gpu"], row["k"], row["policy"])


def with_ratios(row: dict) -> dict:
    """The row with what follows from its figures.

    `spread`: from the shortest to the longest step of those that the figures
    are means of, over the mean. `steps_to_steady`: before the first one from
    which on all are near the mean; None if steps differ by themselves, or
    never get there.
    """
    if "ms" not in row or "bound_ms" not in row:
        return row
    belady_gb = row["belady_in_gb"] + row["belady_out_gb"]
    moved_gb = row["in_gb"] + row["out_gb"]
    times, ms = row["steps_ms"], row["ms"]
    last = times[-row["mean_of"] :]
    far = [i for i, t in enumerate(times, 1) if abs(t / ms - 1) > NEAR_SHARE]
    steps = far[-1] if far else 0
    known = row["alike"] and steps < len(times)
    return {
        **row,
        "bound/ours": row["bound_ms"] / ms,
        "bytes/belady": moved_gb / belady_gb if belady_gb > 0 else None,
        "spread": (max(last) - min(last)) / ms,
        "steps_to_steady": steps if known else None,
    }


def problem(row: dict) -> str:
    """What is wrong with the figures of a point; empty: nothing."""
    point = "{} on {}, k = {:g}, {}".format(*key_of(row))
    if "error" in row:
        return f"{point}: {row['error']}"
    if row.get("bound_ms", 0) > row.get("ms", 0) * (1 + TOLERANCE):
        return (
            f"{point}: took {row['ms']} ms, less than its lower bound of "
            f"{row['bound_ms']} ms"
        )
    return ""


def rounded(row: dict) -> dict:
    """The row with figures of six digits."""
    return {
        name: float(f"{value:.6g}") if isinstance(value, float) else value
        for name, value in row.items()
    }


class Results:
    """A row a point; the last line of a point counts."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.rows: dict[Key, dict] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                self.rows[key_of(row)] = row

    def add(self, row: dict) -> dict:
        """Appends a row, rounded, and returns what was written."""
        row = rounded(row)
        self.rows[key_of(row)] = row
        with self.path.open("a") as file:
            file.write(_line(row))
        return row

    def put_in_order(self, order: list[Key]) -> None:
        """Writes the file again, as if the points had run in this order."""
        rows = dict(sorted(self.rows.items()))
        first = {key: rows.pop(key) for key in order if key in rows}
        self.rows = first | rows
        text = "".join(map(_line, self.rows.values()))
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.replace(self.path)


def _line(row: dict) -> str:
    return json.dumps(row, separators=(",", ":")) + "\n"
