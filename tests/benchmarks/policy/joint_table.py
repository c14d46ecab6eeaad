"""Prints what plans with re-runs reach on the traces, all figures modelled.

Usage: joint_table.py JOINT_TRACE [--mistakes] [--slow] | --bounds

JOINT_TRACE is the tool that a build with -DCHAMELEON_BUILD_TESTS=ON leaves in
its folder under tests/benchmarks/policy/. --mistakes: what it costs if op
times or the link are not what the planner takes them to be. --slow: a machine
like an RTX 4090 (op times of the traces times four, a link of 25 GB/s).
--bounds: below what no plan can get, whatever it moves and runs again; takes
minutes.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from bound import joint_bound_ns
from study import LINKS, figures, print_row, read_step

HERE = Path(__file__).parent

# Per trace and k: the best plan of an earlier simulation of the same traces,
# and the best way to run it with each block checkpointed by hand; ms.
KNOWN = {
    "llama_1.3b_fused_adamw": {
        1.25: (328.8, 412),
        2: (355.3, 412),
        4: (455.6, 482),
    },
    "llama_1.3b_foreach_adamw": {
        1.25: (344.2, 427),
        2: (368.1, 427),
        4: (536.3, 583),
    },
    "resnet50_b256": {1.25: (31.0, 42.1), 2: (32.6, 42.1), 4: (36.6, 96.6)},
    "lora_7b": {1.25: (295.2, 420), 2: (305.2, 420), 4: (353.5, 420)},
}
SLOW = ["--slower", "4", "--link", "25,25,40"]
MISTAKES = (
    ("right", []),
    ("equal op times", ["--equal"]),
    ("30 % off", ["--noise", "1"]),
    ("link half as fast", ["--thought", "0.5"]),
    ("link twice as fast", ["--thought", "2"]),
)


def table(tool: str, slow: bool) -> None:
    columns = [
        "trace",
        "k",
        "compute",
        "swap only",
        "checkpointed",
        "known",
        "**ours**",
    ]
    columns += ["over compute", "re-run", "GB in/out", "plans", "first", "all"]
    if slow:
        columns = [c for c in columns if c not in ("checkpointed", "known")]
    print_row(columns)
    print("|--" * len(columns) + "|")
    for trace, points in KNOWN.items():
        for k, (known, checkpointed) in points.items():
            got = figures(tool, trace, k, SLOW if slow else [])
            row = [trace, f"{k:g}", f"{got['compute_ms']:.1f}"]
            row.append(f"{got['swap_ms']:.1f}")
            if not slow:
                row += [f"{checkpointed:g}", f"{known:g}"]
            row += [
                f"**{got['joint_ms']:.1f}**",
                f"{got['joint_ms'] / got['compute_ms']:.3f}",
                f"{got['rerun_ms']:.1f}",
                f"{got['in_gb']:.1f}/{got['out_gb']:.1f}",
                f"{got['planned']}",
                f"{got['first_time_ms'] / 1e3:.2f} s",
                f"{got['search_time_ms'] / 1e3:.1f} s",
            ]
            print_row(row)


def mistakes(tool: str) -> None:
    print_row(["trace", "k", *[name for name, _ in MISTAKES]])
    print("|--" * (2 + len(MISTAKES)) + "|")
    for trace, points in KNOWN.items():
        for k in points:
            row = [trace, f"{k:g}"]
            for _, arguments in MISTAKES:
                got = figures(tool, trace, k, arguments)
                row.append(
                    f"{got['replanned_ms']:.1f} / {got['mistaken_ms']:.1f}"
                )
            print_row(row)


def bounds() -> None:
    # The tool's own table: which ops may run again.
    names = set(re.findall(r'"(\w+)",', (HERE / "rerun_names.h").read_text()))
    print_row(["trace", "k", "compute", "bound"])
    print("|--" * 4 + "|")
    for trace, points in KNOWN.items():
        step = read_step(trace)
        for k in points:
            bound_ns = joint_bound_ns(
                step, int(step.peak_bytes / k), LINKS, names.__contains__
            )
            cells = [step.compute_ns / 1e6, bound_ns / 1e6]
            print_row([trace, f"{k:g}", *(f"{ms:.1f}" for ms in cells)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("joint_trace", nargs="?", help="path of the tool")
    parser.add_argument("--mistakes", action="store_true")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--bounds", action="store_true")
    arguments = parser.parse_args()
    if arguments.bounds:
        bounds()
    elif arguments.joint_trace is None:
        parser.error("the path of joint_trace is missing")
    elif arguments.mistakes:
        mistakes(arguments.joint_trace)
    else:
        table(arguments.joint_trace, arguments.slow)


if __name__ == "__main__":
    main()
