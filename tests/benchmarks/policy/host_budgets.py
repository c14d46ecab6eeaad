"""What a host budget costs, on the simulated RTX 4090: all modelled.

    python tests/benchmarks/policy/host_budgets.py [--jobs N] [--results FILE]
        [--sweep TRAINING@K ...] [--fits TRAINING ...]

`--sweep`: a training within a budget of its peak over K, and twenty host
budgets, from one that is just enough to one that holds all. `--fits`: a
training at several K, with some host budgets, a few steps each: is any refused?
Without either: the defaults of both. Just enough is what lets device and host
together hold 1.05 times the peak.

Results are lines of JSON in FILE; points that are there are left out. Without
--results the tables of HOST_BUDGETS.md are made of them.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import pathlib
import sys
from collections.abc import Iterator

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1])]

import marked_part  # noqa: E402
from child import figures  # noqa: E402

RESULTS = HERE / "host_budgets.jsonl"
PAGE = HERE / "HOST_BUDGETS.md"
BEGIN = "<!-- host_budgets.py writes from here -->"
END = "<!-- to here -->"
GPU = "rtx4090"
SWEEP = ("llama_1.3b_fused@2", "llama_7b@2.5", "vit_l@2")
SWEEP += ("resnet50_b256@2", "lora_7b@2")
BUDGETS = 20
SWEEP_STEPS = 24
FITS = ("lora", "lora_checkpointed", "full", "scaled", "accumulated_4")
FITS += ("preferences", "adversaries", "closure", "reentrant", "unet")
KS = (1.5, 2.0, 3.0, 4.0)
SHARES = (1.05, 1.1, 1.2, 1.5)  # of the peak, device and host together
FITS_STEPS = 3
ENOUGH = 1.05
SETTLED = 0.02

Key = tuple[str, float, float | None, int]


class Points:
    """Trainings, each run once."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self.rows: dict[Key, dict] = {}
        lines = path.read_text().splitlines() if path.exists() else []
        for row in map(json.loads, lines):
            self.rows[self.key(row)] = row

    @staticmethod
    def key(row: dict) -> Key:
        """What tells points apart."""
        return row["training"], row["k"], row["share"], row["steps"]

    def peak_bytes(self, training: str) -> int:
        """What it takes where there is room for all."""
        return self.point(training, 0.0, None, 2)["peak_bytes"]

    def point(
        self, training: str, k: float, share: float | None, steps: int
    ) -> dict:
        """A training within its peak over k and a host budget.

        Args:
            training: Its name.
            k: 0: there is room for all.
            share: Of its peak, what both memories hold; None: any amount.
            steps: How many.
        """
        asked: Key = (training, k, share, steps)
        if asked in self.rows:
            return self.rows[asked]
        limits: dict = {}
        if k:
            peak = self.peak_bytes(training)
            limits = {"budget": int(peak / k)}
            if share is not None:
                limits["host"] = int(share * peak) - limits["budget"]
        row = figures(
            HERE / "host_point.py",
            {"training": training, "gpu": GPU, "steps": steps, **limits},
            {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
        )
        if "error" in row:
            raise RuntimeError(f"{asked}: {row['error']}")
        names = ("training", "k", "share", "steps")
        row = dict(zip(names, asked, strict=True)) | limits | row
        self.rows[asked] = row
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        shown = [round(ms, 1) for ms in row["ms"][:2] + row["ms"][-1:]]
        print(*asked, shown, row["refused"] or "", flush=True)
        return row


def sweep_shares(k: float) -> list[float | None]:
    """From just enough to what holds all beside the device."""
    step = 1 / k / (BUDGETS - 2)
    shares = [round(ENOUGH + i * step, 4) for i in range(BUDGETS - 1)]
    return [*shares, None]


def settled_at(ms: list[float]) -> int:
    """The first step from which on all take about the last one's time."""
    near = [abs(each / ms[-1] - 1) <= SETTLED for each in ms]
    return len(near) - near[::-1].index(False) if False in near else 0


def slower(rows: list[dict]) -> float:
    """How much longer a step takes with more host memory, at most."""
    most, least = 0.0, float("inf")
    for row in rows:  # from little to much
        ms = row["ms"][-1]
        most = max(most, ms / least - 1)
        least = min(least, ms)
    return most


def gib(count: float) -> str:
    """Bytes for the table."""
    return f"{count / 2**30:.1f}"


def sweep_table(points: Points) -> Iterator[str]:
    """A line for each training that was swept."""
    groups = collections.defaultdict(list)
    for row in points.rows.values():
        if row["steps"] == SWEEP_STEPS:
            groups[row["training"], row["k"]].append(row)
    head = ("training", "k", "peak", "host budgets", "ms a step", "slower")
    head += ("settled", "host: first steps", "used", "held", "held before")
    yield from table_head(head)
    for (training, k), rows in groups.items():
        rows.sort(key=lambda row: row["share"] or float("inf"))
        taken = [row["ms"][-1] for row in rows if not row["refused"]]
        last = rows[-1]
        cells = (
            training,
            f"{k:g}",
            gib(points.peak_bytes(training)),
            f"{len(rows)}, from {gib(rows[0]['host'])}",
            f"{min(taken):.1f} to {max(taken):.1f}",
            f"{slower(rows) * 100:.1f} %",
            f"{max(settled_at(row['ms']) for row in rows)}",
            gib(max(row["peak_host_bytes"] for row in rows)),
            gib(last["host_bytes"][-1]),
            gib(last["reserved_bytes"][-1]),
            gib(max(last["reserved_bytes"])),
        )
        yield f"| {' | '.join(cells)} |"


def fits_table(points: Points) -> Iterator[str]:
    """A line for each training, a column for each k."""
    yield from table_head(("training", *(f"k = {k:g}" for k in KS)))
    rows = [row for row in points.rows.values() if row["steps"] == FITS_STEPS]
    for training in dict.fromkeys(row["training"] for row in rows):
        cells = [training]
        for k in KS:
            here = [
                row
                for row in rows
                if (row["training"], row["k"]) == (training, k)
            ]
            refused = [row for row in here if row["refused"]]
            text = f"{len(here) - len(refused)} of {len(here)}"
            if refused:
                text += f": {why(refused[0])}"
            cells.append(text)
        yield f"| {' | '.join(cells)} |"


def why(row: dict) -> str:
    """In words, what a refusal was for."""
    if "host memory for evicted tensors has no room for more" in row["refused"]:
        return "host full"
    return "one op needs more than the budget"


def table_head(names: tuple[str, ...]) -> Iterator[str]:
    """The first two lines of a table."""
    yield f"| {' | '.join(names)} |"
    yield "|" + "--|" * len(names)


def write_page(points: Points) -> None:
    """The tables of HOST_BUDGETS.md."""
    lines = [*sweep_table(points), "", *fits_table(points)]
    marked_part.put("\n\n{}\n\n".format("\n".join(lines)), PAGE, BEGIN, END)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--sweep", nargs="*")
    parser.add_argument("--fits", nargs="*")
    options = parser.parse_args()
    sweep, fits = options.sweep, options.fits
    if sweep is None and fits is None:
        sweep, fits = SWEEP, FITS
    points = Points(options.results or RESULTS)
    asked: list[Key] = []
    for name in sweep or ():
        training, _, k = name.partition("@")
        shares = sweep_shares(float(k))
        asked += [(training, float(k), each, SWEEP_STEPS) for each in shares]
    for training in fits or ():
        asked += [
            (training, k, share, FITS_STEPS)
            for k in KS
            for share in (*SHARES, None)
        ]
    for training in dict.fromkeys(key[0] for key in asked):
        points.peak_bytes(training)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for done in [pool.submit(points.point, *key) for key in asked]:
            done.result()
    if options.results is None:
        write_page(points)


if __name__ == "__main__":
    main()
