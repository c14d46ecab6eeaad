"""Steps found without a mark, beside steps marked: all modelled.

    python tests/benchmarks/policy/step_marks.py
        [--shape S ...] [--k K] [--steps N] [--marks auto|manual|off ...]
        [--show]

Runs the trainings of tests/integration/training_shapes.py on a simulated H100
with peak / k bytes, each in a process of its own, and prints a row for each: a
step's compute, its mean time over the last ten steps, and from which step on
all take at most 5 % more than these. Marks `manual`: the program calls
torch_chameleon.step(); `auto`: it does not; `off`: nobody looks at optimizers
either. --show prints every step's milliseconds too.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent)]

LAST = 10
NEAR = 1.05


def run(shape: str, k: float, steps: int, marks: str) -> dict:
    """One training, in this process."""
    import torch
    import torch_chameleon as tc
    from integration.training_shapes import SHAPES
    from point import UNLIMITED, simulate

    simulate("h100", UNLIMITED, "joint")
    config = tc.config
    config.step_marks = marks
    step = SHAPES[shape]()
    times, compute = [], 0.0
    for number in range(steps + 1):
        tc.reset_swap_stats()
        begin, end = (
            torch.Event("chameleon", enable_timing=True) for _ in range(2)
        )
        begin.record()
        step()
        end.record()
        if marks == "manual":
            tc.step()
        end.synchronize()
        stats = tc.swap_stats()
        if number == 0:  # without a limit; it makes the optimizer's state
            config.hbm_budget = int(stats["peak_logical_bytes"] / k)
            compute = stats["compute_ns"] / 1e6
        else:
            times.append(begin.elapsed_time(end))
    return {"compute_ms": compute, "ms": times}


def figures(shape: str, k: float, steps: int, marks: str) -> dict:
    """`run` in a process of its own; its error as a row, if it fails."""
    import child

    arguments = {"shape": shape, "k": k, "steps": steps, "marks": marks}
    return child.figures(pathlib.Path(__file__), arguments, {})


def settled(times: list[float]) -> int:
    """From which step on, counted from 1, all are near the last ones' mean."""
    limit = NEAR * statistics.fmean(times[-LAST:])
    late = [number for number, ms in enumerate(times, 1) if ms > limit]
    return late[-1] + 1 if late else 1


def main() -> None:
    from integration.training_shapes import SHAPES

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", nargs="+", default=list(SHAPES))
    parser.add_argument("--k", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--marks", nargs="+", default=["auto", "manual"])
    parser.add_argument("--show", action="store_true")
    chosen = parser.parse_args()
    print("| training | marks | compute, ms | a step, ms | best | settled |")
    print("|--|--|--|--|--|--|")
    for shape in chosen.shape:
        for marks in chosen.marks:
            row = figures(shape, chosen.k, chosen.steps, marks)
            if "error" in row:
                print(f"| {shape} | {marks} | {row['error']} |", flush=True)
                continue
            times = row["ms"]
            print(
                f"| {shape} | {marks} | {row['compute_ms']:.1f} | "
                f"{statistics.fmean(times[-LAST:]):.1f} | {min(times):.1f} | "
                f"{settled(times)} |",
                *([f"{ms:.0f}" for ms in times] if chosen.show else ()),
                flush=True,
            )


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        print(json.dumps(run(**json.loads(sys.argv[1]))))
    else:
        main()
