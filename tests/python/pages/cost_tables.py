"""Modelled times of the benchmark's workloads, for python/docs/cost.md.

Out of tests/benchmarks/policy/results.jsonl.
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[3]
BENCHMARKS = ROOT / "tests" / "benchmarks"
sys.path += [str(BENCHMARKS), str(BENCHMARKS / "policy")]

from results import RESULTS, Results  # noqa: E402

TITLES = {"h200": "H200", "rtx4090": "RTX 4090"}
KS = (1.25, 2, 4)  # the peak of live tensors over the budget
SWAPPING, RERUNNING = "forecast", "joint"  # as the results name them


class Modelled:
    """All points, as multiples of a step with room for everything."""

    def __init__(self):
        self.rows = Results(RESULTS).rows
        self.workloads = list(dict.fromkeys(key[0] for key in self.rows))

    def in_memory_ms(self, workload, gpu):
        """A step with room for everything."""
        return self.rows[workload, gpu, 0.0, "lru"]["ms"]

    def times(self, workload, gpu, k, policy=RERUNNING):
        """A step's time over that in memory; None: it does not fit."""
        row = self.rows.get((workload, gpu, k, policy), {})
        if "ms" not in row:
            return None
        return row["ms"] / self.in_memory_ms(workload, gpu)

    def all_times(self, ks=KS, workloads=None):
        """Of these workloads (None: all), on every card of the page."""
        found = (
            self.times(workload, gpu, k)
            for gpu in TITLES
            for workload in workloads or self.workloads
            for k in ks
        )
        return [times for times in found if times is not None]


def tables():
    """A table for each card."""
    modelled = Modelled()
    lines = []
    for gpu, title in TITLES.items():
        lines += ["", f"| {title} | k | in memory, ms | swapping | "]
        lines[-1] += "recomputing too |"
        lines.append("|--|--|--|--|--|")
        for workload in modelled.workloads:
            for k in KS:
                both = [
                    modelled.times(workload, gpu, k, policy)
                    for policy in (SWAPPING, RERUNNING)
                ]
                if None in both:
                    continue
                cells = (
                    f"`{workload}`",
                    f"{k:g}",
                    f"{modelled.in_memory_ms(workload, gpu):.1f}",
                    *(f"{times:.2f}" for times in both),
                )
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines[1:])
