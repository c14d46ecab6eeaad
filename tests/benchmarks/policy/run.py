"""Trains full-size models on the simulated GPU, by policy: all modelled.

    python tests/benchmarks/policy/run.py [--jobs N]
        [--workload W ...] [--gpu G ...] [--k K ...] [--policy P ...]
        [--results FILE] [--again]

Each point is a process of its own. Results are lines of JSON in FILE; points
that are there already are left out, unless --again or they failed, so a run
that was interrupted goes on. A lower bound above what was achieved is an error,
and so is a point that cannot run. Figures repeat to the last digit. Without
--results the tables and the plot of RESULTS.md are made of them.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import functools
import pathlib
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1])]

import table  # noqa: E402
from child import figures  # noqa: E402
from results import RESULTS, Key, Results, problem, with_ratios  # noqa: E402

KS = (1.25, 2.0, 4.0)
POLICIES = ("lru", "forecast", "joint")
GPUS = ("h200", "rtx4090", "a100-80gb")


def child(script: str, **arguments: object) -> dict:
    """The figures of a script beside this one, the same every time."""
    repeats = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    return figures(HERE / script, arguments, repeats)


class Benchmark:
    """Runs points and writes them down. Thread-safe."""

    def __init__(self, results: Results, again: bool) -> None:
        self.results = results
        self.again = again
        self.made: set[Key] = set()
        self.lock = threading.Lock()

    def missing(self, key: Key) -> bool:
        """Whether a point is to be run."""
        if self.again:
            return key not in self.made
        return "error" in self.results.rows.get(key, {"error": "not run"})

    def keep(self, key: Key, row: dict, start: float) -> dict:
        """Writes a point down."""
        names = ("workload", "gpu", "k", "policy")
        with self.lock:
            self.made.add(key)
            day = datetime.date.today().isoformat()
            row = dict(zip(names, key, strict=True)) | row | {"day": day}
            row = self.results.add(row)
        shown = "{} {} k={:g} {}".format(*key)
        keys = ("error", "infeasible", "ms", "bound_ms", "bound/ours")
        figures = {name: row[name] for name in keys if name in row}
        print(shown, figures, f"{time.monotonic() - start:.0f} s", flush=True)
        return row

    def unlimited(self, workload: str, gpu: str) -> dict:
        """The point with room for all: from it come the budgets."""
        key = (workload, gpu, 0.0, "lru")
        if not self.missing(key):
            return self.results.rows[key]
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            row = child("point.py", workload=workload, gpu=gpu, traces=folder)
            if "error" not in row:
                (trace,) = files_in(folder)[-1:]
                row |= child("yardsticks.py", largest_op_of=trace)
        return self.keep(key, row, start)

    def group(self, workload: str, gpu: str, k: float, policies: list) -> None:
        """All policies with one budget; they share a bound and a trace."""
        keys = {policy: (workload, gpu, k, policy) for policy in policies}
        if not any(map(self.missing, keys.values())):
            return
        native = self.results.rows[workload, gpu, 0.0, "lru"]
        if "error" in native:
            return
        budget = int(native["peak_bytes"] / k)
        if native["largest_op_bytes"] > budget:
            # Nothing to measure: one op alone needs more.
            for key in filter(self.missing, keys.values()):
                row = {"budget": budget, "infeasible": True}
                self.keep(key, row, time.monotonic())
            return
        with tempfile.TemporaryDirectory() as folder:
            self.run_group(keys, budget, folder)

    def run_group(self, keys: dict, budget: int, folder: str) -> None:
        """Runs `lru` first: its trace is the yardsticks'.

        They are of swapping; `joint` has none.
        """
        workload, gpu, *_ = next(iter(keys.values()))
        run = functools.partial(
            child, "point.py", workload=workload, gpu=gpu, budget=budget
        )
        start = time.monotonic()
        measure: dict = {}
        lru: dict = {"error": "not run"}
        if any(self.missing(keys[policy]) for policy in {*keys} - {"joint"}):
            lru = run(policy="lru", traces=folder)
        traces = files_in(folder)
        if "error" not in lru:
            measure = child(
                "yardsticks.py", traces=traces, gpu=gpu, budget=budget
            )
        for policy, key in keys.items():
            if not self.missing(key):
                continue
            row = lru if policy == "lru" else run(policy=policy)
            if policy != "joint":
                row = with_ratios(row | measure)
            row = {"budget": budget} | row
            self.keep(key, row, start)
            start = time.monotonic()


def files_in(folder: str) -> list[str]:
    """Traces of steps, in order."""
    return [str(path) for path in sorted(pathlib.Path(folder).iterdir())]


def main() -> None:
    from workloads import WORKLOADS

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workload", nargs="+", default=list(WORKLOADS))
    parser.add_argument("--gpu", nargs="+", default=list(GPUS))
    parser.add_argument("--k", nargs="+", type=float, default=list(KS))
    parser.add_argument("--policy", nargs="+", default=list(POLICIES))
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    benchmark = Benchmark(Results(options.results), options.again)

    models = [(w, g) for g in options.gpu for w in options.workload]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda model: benchmark.unlimited(*model), models))
        for task in [
            pool.submit(benchmark.group, *model, k, options.policy)
            for model in models
            for k in options.k
        ]:
            task.result()
    everything = parser.parse_args([])
    benchmark.results.put_in_order(points(everything))
    if options.results == RESULTS:
        table.write(benchmark.results)
    rows = map(benchmark.results.rows.get, points(options))
    problems = [problem(row) for row in rows if row is not None]
    if any(problems):
        sys.exit("\n".join(filter(None, problems)))


def points(options: argparse.Namespace) -> list[Key]:
    """All that are asked for, in the order of the table."""
    return [
        (workload, gpu, k, policy)
        for gpu in options.gpu
        for workload in options.workload
        for k in (0.0, *options.k)
        for policy in (options.policy if k else ("lru",))
    ]


if __name__ == "__main__":
    main()
