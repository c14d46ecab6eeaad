"""What a change of the op sequence costs, on the simulated GPU: all modelled.

    python tests/benchmarks/policy/adaptation.py
        [--program P ...] [--policy NAME] [--k K] [--size SIZE] [--marked]
        [--steps]

Programs are in tests/integration/changing_programs.py, what is said of steps in
tests/integration/adaptation.py. Each program runs in a process of its own, with
peak / k bytes of device memory; so does each kind of its steps alone, over and
over, for comparison. --marked: the programs call torch_chameleon.step().
--steps prints every step too. A known kind of step that is lost is an error.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1])]

UNLIMITED = 2 << 40
PROGRAMS = {
    "steady": ("steady", {}),
    "3 train, 2 eval": ("train_and_eval", {}),
    "4 backward, 1 update": ("accumulation", {}),
    "updates skipped": ("skipped_updates", {}),
    "3 lengths at random": ("lengths", {}),
    "batch size": ("batch_sizes", {}),
    "new phases": ("phases", {}),
    "10 % surprises": ("surprises", {"share": 0.25}),
    "experts": ("experts", {}),
}
# Every step is a new sequence. Compared with this, instead of with its kinds of
# step alone.
AGAINST = {
    "10 % surprises": ("surprises", {"share": 0.0}),
    "experts": ("experts", {"even": True}),
}
HEAD = (
    "| program | steps | paged, of new kinds | cost of a new kind, steps "
    "| lost, of known kinds | ms a step | without change | more "
    "| misses of ops | faults |\n|--|--|--|--|--|--|--|--|--|--|"
)


def run(budget: int, policy: str, arguments: list) -> dict:
    """One run, in its own process."""
    import torch
    from integration import adaptation
    from point import simulate
    from torch_chameleon import swap_stats

    simulate("h200", budget, policy)
    torch.set_default_dtype(torch.bfloat16)
    rows = adaptation.judge(adaptation.run(*arguments))
    return {"rows": rows, "peak_bytes": swap_stats()["peak_resident_bytes"]}


def apart(*arguments: object) -> dict:
    """`run` in a fresh process."""
    command = [sys.executable, __file__, "--child", json.dumps(arguments)]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        sys.exit(f"{arguments}: {result.stderr}")
    return json.loads(result.stdout.splitlines()[-1])


def report(name: str, rows: list[dict], without_ms: float) -> str:
    """A row of the table."""
    from integration.adaptation import late, mean

    new = [row for row in rows if row["new"]]
    known = [row for row in rows if not row["new"] and not row["settling"]]
    costs = [
        row["excess"] + (after["excess"] if after["settling"] else 0)
        for row, after in itertools.pairwise(rows)
        if row["new"]
    ]
    end = late(rows)
    cells = [
        name,
        len(rows),
        *(
            ("every step is new", "", "")
            if name in AGAINST
            else (
                f"{sum(row['paged'] for row in new)} of {len(new)}",
                f"{max(costs):.2f}",
                f"{sum(row['lost'] for row in known)} of {len(known)}",
            )
        ),
        f"{mean(end, 'ms'):.1f}",
        f"{without_ms:.1f}",
        f"{100 * (mean(end, 'ms') / without_ms - 1):+.1f} %",
        f"{mean(end, 'forecast_misses'):.1f} of {mean(end, 'ops'):.0f}",
        f"{mean(end, 'faults'):.1f}",
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def show(rows: list[dict]) -> None:
    """All steps."""
    for number, row in enumerate(rows):
        flags = [
            flag for flag in ("new", "settling", "paged", "lost") if row[flag]
        ]
        print(
            f"{number:3} {row['kind']:12}{row['ms']:9.2f} ms"
            f"{row['bytes_in'] / 1e9:7.2f} GB in"
            f"{row['bytes_out'] / 1e9:7.2f} out"
            f"{row['faults']:5} faults"
            f"{row['forecast_misses']:5} misses of {row['ops']:5} "
            + " ".join(flags)
        )


def without_change(name: str, end: list[dict], size: str, run_one) -> float:
    """What a step of the second half takes where it is all there is."""
    from integration.adaptation import late, mean, steady_times

    if name in AGAINST:
        return mean(late(run_one(*AGAINST[name], size)), "ms")
    times = {
        kind: steady_times(run_one(*PROGRAMS[name], size, kind))[kind]
        for kind in {row["kind"] for row in end}
    }
    return sum(times[row["kind"]] for row in end) / len(end)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--program", nargs="+", default=list(PROGRAMS))
    parser.add_argument("--policy", default="forecast")
    parser.add_argument("--k", type=float, default=2)
    parser.add_argument("--size", default="MIDDLE")
    parser.add_argument("--marked", action="store_true")
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(run(*json.loads(options.child))))
        return
    lines, wrong = [HEAD], []
    for name in options.program:
        whole = apart(UNLIMITED, "lru", [*PROGRAMS[name], options.size])
        budget = int(whole["peak_bytes"] / options.k)

        def run_one(program, arguments, size, only=None, budget=budget):
            how = [program, arguments, size, only, options.marked]
            return apart(budget, options.policy, how)["rows"]

        rows = run_one(*PROGRAMS[name], options.size)
        end = rows[len(rows) // 2 :]
        without_ms = without_change(name, end, options.size, run_one)
        lines.append(report(name, rows, without_ms))
        if options.steps:
            print(name)
            show(rows)
        print(lines[-1], flush=True)
        wrong += [
            f"{name}: step {number} was lost"
            for number, row in enumerate(rows)
            if name not in AGAINST
            and row["lost"]
            and not row["new"]
            and not row["settling"]
        ]
    print("\n".join(["", *lines]))
    sys.exit("\n".join(wrong) or None)


if __name__ == "__main__":
    main()
