"""Prints the planner's figures on the traces as a table, all modelled.

Usage: planner_table.py PLAN_TRACE [--all]

PLAN_TRACE is the tool that a build with -DCHAMELEON_BUILD_TESTS=ON leaves in
its folder under tests/benchmarks/policy/. --all tries the whole portfolio.
"""

from __future__ import annotations

import argparse
import sys

from bound import lower_bound_ns
from study import LINKS, figures, print_row, read_step

# Per trace: {k: best plan known before this planner} in ms; see
# traces/README.md for where they come from.
KNOWN = {
    "llama_1.3b_fused_adamw": {1.25: 422, 2: 902, 4: 1422},
    "llama_1.3b_foreach_adamw": {1.25: 423, 2: 964, 4: 1501},
    "llama_1.3b_checkpointed_fused": {1.25: 412, 2: 557},
    "resnet50_b256": {1.25: 84.2, 2: 208, 4: 312},
    "lora_7b": {1.25: 295.2, 2: 479, 4: 812},
}
COLUMNS = [
    "trace",
    "k",
    "compute",
    "bound",
    "LRU",
    "MIN",
    "known",
    "ours",
    "bound/known",
    "**bound/ours**",
    "first",
    "GB in/out",
    "stall",
    "planning ms",
]


def row(
    trace: str, k: float, bound: float, best: float, got: dict[str, float]
) -> list[str]:
    """One line; times in ms; LRU, MIN and first as bound/theirs."""
    plan = got["plan_ms"]
    return [
        trace,
        f"{k:g}",
        f"{got['compute_ms']:.1f}",
        f"{bound:.1f}",
        f"{bound / got['lru_ms']:.3f}",
        f"{bound / got['min_ms']:.3f}",
        f"{best:g}",
        f"{plan:.1f}",
        f"{bound / best:.3f}",
        f"**{bound / plan:.3f}**",
        f"{bound / got['first_ms']:.3f}",
        f"{got['plan_in_gb']:.1f}/{got['plan_out_gb']:.1f}",
        f"{max(0.0, got['stall_ms']) / plan:.2f}",
        f"{got['all_time_ms']:.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plan_trace", help="path of the tool")
    parser.add_argument(
        "--all", action="store_true", help="the whole portfolio"
    )
    arguments = parser.parse_args()
    options = ["--all"] if arguments.all else []
    print_row(COLUMNS)
    print("|--" * len(COLUMNS) + "|")
    failed = False
    for trace, points in KNOWN.items():
        step = read_step(trace)
        for k, best in points.items():
            got = figures(arguments.plan_trace, trace, k, options)
            bound = lower_bound_ns(step, int(step.peak_bytes / k), LINKS) / 1e6
            print_row(row(trace, k, bound, best, got))
            failed = failed or got["plan_ms"] < 0.999 * bound
    if failed:
        sys.exit("a plan is faster than its lower bound: the model is wrong")


if __name__ == "__main__":
    main()
