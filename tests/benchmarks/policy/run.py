"""Trains full-size models on the simulated GPU, by policy: all modelled.

    python tests/benchmarks/policy/run.py
        [--workload W ...] [--gpu G ...] [--k K ...] [--policy P ...]
        [--results FILE] [--again]

Each point is a process of its own. Results are lines of JSON in FILE; points
that are there already are left out, unless --again. A lower bound above what
was achieved is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

BANDWIDTHS = {  # bytes/s: in, out, both together
    "h200": (55e9, 55e9, 90e9),
    "rtx4090": (25e9, 25e9, 40e9),
}
KS = (1.25, 2.0, 4.0)
POLICIES = ("lru", "forecast")
RESULTS = HERE / "results.jsonl"
UNLIMITED = 2 << 40
STEPS = 10
PLANNING_S = 1.0  # real time for the planner after each step
STEADY = 3  # of the last steps the mean is taken


# ---- one point, in its own process ------------------------------------------


def train(
    workload: str, gpu: str, budget: int, policy: str, steps: int, trace: str
) -> dict:
    """Trains for some steps; what they took on the simulated clock."""
    import warnings

    import torch
    import torch_chameleon
    from torch_chameleon import config, swap_stats
    from workloads import WORKLOADS

    warnings.simplefilter("ignore")
    config.physical_device = "simulated"
    config.simulated_gpu = {
        "base": gpu,
        "memory": "2TiB",
        "host_memory": "2TiB",
        "name": gpu,
    }
    config.hbm_budget = budget
    config.oversubscription = 64.0
    config.policy = policy
    torch.manual_seed(0)
    step = WORKLOADS[workload]()
    rows = []
    for _ in range(steps):
        torch.chameleon.synchronize()
        torch_chameleon.reset_swap_stats()
        begin, end = (
            torch.Event("chameleon", enable_timing=True) for _ in range(2)
        )
        torch_chameleon.step()
        begin.record()
        step()
        end.record()
        torch.chameleon.synchronize()
        stats = swap_stats()
        stats["ms"] = begin.elapsed_time(end)
        rows.append(stats)
        if policy != "lru":
            time.sleep(PLANNING_S)
    if trace:
        torch_chameleon.profiler.export_trace(trace)

    def mean(key: str) -> float:
        return sum(row[key] for row in rows[-STEADY:]) / STEADY

    ms = mean("ms")
    return {
        "ms": ms,
        "steps_ms": [round(row["ms"], 3) for row in rows],
        "compute_ms": mean("compute_ns") / 1e6,
        "stall_share": mean("stall_ns") / 1e6 / ms,
        "in_gb": mean("bytes_in") / 1e9,
        "out_gb": mean("bytes_out") / 1e9,
        "faults": mean("faults"),
        "compactions": mean("compactions"),
        "evictions": mean("evictions"),
        "hits": mean("prefetch_hits"),
        "prefetched_gb": mean("prefetched_bytes") / 1e9,
        "peak_bytes": max(row["peak_resident_bytes"] for row in rows),
        "steps_to_steady": 1
        + max(
            (i for i, row in enumerate(rows) if abs(row["ms"] / ms - 1) > 0.02),
            default=-1,
        ),
    }


# ---- all points --------------------------------------------------------------


class Results:
    """Lines of JSON, a point each; the last one of a point counts."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.points: dict[tuple, dict] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                self._take(json.loads(line))

    def _take(self, row: dict) -> None:
        key = (row["workload"], row["gpu"], row["k"], row["policy"])
        self.points[key] = row

    def add(self, row: dict) -> None:
        self._take(row)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def run_point(*arguments: object) -> dict:
    """`train` in a fresh process."""
    command = [sys.executable, __file__, "--child", json.dumps(arguments)]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        return {"error": result.stderr.strip().splitlines()[-1]}
    return json.loads(result.stdout.splitlines()[-1])


def measure(
    results: Results, key: tuple, steps: int, bounds: dict[tuple, dict]
) -> str:
    """Runs a point; what is wrong with its figures, or nothing."""
    workload, gpu, k, policy = key
    native = results.points[workload, gpu, 0, "lru"]
    budget = int(native["peak_bytes"] / k)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "trace.jsonl")
        row = run_point(workload, gpu, budget, policy, steps, trace)
        if "error" not in row and os.path.exists(trace):
            if key[:3] not in bounds:
                bounds[key[:3]] = bound_of(trace, gpu, budget)
            row.update(bounds[key[:3]])
    row.update(workload=workload, gpu=gpu, k=k, policy=policy, budget=budget)
    if "bound_ms" in row:
        row["bound/ours"] = round(row["bound_ms"] / row["ms"], 4)
    row["wall_s"] = round(time.monotonic() - start, 1)
    results.add(row)
    print(json.dumps(row), flush=True)
    if "error" in row:
        return f"{key}: {row['error']}"
    if row.get("bound_ms", 0) > row["ms"] * 1.0001:
        return f"{key}: bound {row['bound_ms']} ms, achieved {row['ms']} ms"
    return ""


def bound_of(trace: str, gpu: str, budget: int) -> dict:
    """The lower bound and Belady's bytes of the step in a trace."""
    from belady import belady_bytes
    from bound import Links, Step, lower_bound_ns

    with open(trace) as lines:
        records = [r for r in map(json.loads, lines) if "op" in r]
    cut_at_the_end(records)
    step = Step.from_records(records)
    bytes_in, bytes_out = belady_bytes(step, budget)
    return {
        "bound_ms": lower_bound_ns(step, budget, Links(*BANDWIDTHS[gpu])) / 1e6,
        "trace_compute_ms": step.compute_ns / 1e6,
        "trace_ops": step.ops,
        "trace_peak_bytes": step.peak_bytes,
        "belady_in_gb": bytes_in / 1e9,
        "belady_out_gb": bytes_out / 1e9,
    }


def cut_at_the_end(records: list[dict]) -> None:
    """Lets what lives across the step's end die there: that only costs less.

    What is freed without having been touched is forgotten.
    """
    created = {key: op for op, r in enumerate(records) for key, _ in r["out"]}
    touched = created.keys() | {key for r in records for key, _ in r["in"]}
    for op, record in enumerate(records):
        early = {key for key, at in created.items() if at > op}
        record["in"] = [use for use in record["in"] if use[0] not in early]
        record["write"] = [key for key in record["write"] if key not in early]
        late = [key for key in record["free"] if key in early]
        record["free"] = [
            key for key in record["free"] if key in touched and key not in early
        ]
        records[-1]["free"] += late


def main() -> None:
    from workloads import WORKLOADS

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workload", nargs="+", default=list(WORKLOADS))
    parser.add_argument("--gpu", nargs="+", default=list(BANDWIDTHS))
    parser.add_argument("--k", nargs="+", type=float, default=KS)
    parser.add_argument("--policy", nargs="+", default=POLICIES)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(train(*json.loads(options.child))))
        return
    results = Results(options.results)
    wrong = []
    bounds: dict[tuple, dict] = {}
    points = [
        (workload, gpu, k, policy)
        for gpu in options.gpu
        for workload in options.workload
        for k in options.k
        for policy in options.policy
    ]
    for key in points:
        native = (*key[:2], 0, "lru")
        if native not in results.points:
            row = run_point(*key[:2], UNLIMITED, "lru", STEADY, "")
            if "error" in row:
                sys.exit(row["error"])
            row.update(workload=key[0], gpu=key[1], k=0, policy="lru")
            results.add(row)
        if key not in results.points or options.again:
            wrong.append(measure(results, key, options.steps, bounds))
    if any(wrong):
        sys.exit("\n".join(filter(None, wrong)))


if __name__ == "__main__":
    main()
