"""Plays failures on 32 simulated cards, and writes README.md's tables.

    python tests/benchmarks/elastic/cluster_table.py

All modelled: what steps take is in steps.json, which simulated_steps.py writes.
"""

from __future__ import annotations

import json
import logging
import pathlib
import statistics
import sys
from collections.abc import Callable, Iterable

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from cluster import Cluster, compute_left  # noqa: E402
from failure_schedules import HOUR_S, KINDS, Event, Kind, draw  # noqa: E402
from peers import Healing, Oobleck, ReCycle  # noqa: E402
from restarting import SAMPLES, Restarting, Step  # noqa: E402

AUTO, AUTO_FEWER = "`auto`", "`auto`, fewer samples allowed"
LENGTH_S, SEEDS = 24 * HOUR_S, range(5)
CARDS, LAYERS = 32, 32
PAGE = HERE / "README.md"
MARK = "<!-- cluster_table.py writes what follows -->"
Make = Callable[[Kind, float], Cluster]


def ours(policy: str, steps: dict[int, Step], fewer: bool) -> Make:
    """Our launcher with a policy."""
    return lambda kind, length_s: Restarting(
        policy, steps, kind, length_s, fewer=fewer
    )


def policies(name: str, steps: dict[int, Step]) -> dict[str, Make]:
    """All that is played for a training; the choosers are first.

    Args:
        name: Of the training.
        steps: What they take.
    """
    step_s = steps[CARDS].step_s
    made = {
        AUTO: ours("auto", steps, False),
        AUTO_FEWER: ours("auto", steps, True),
        "in place": ours("in-place", steps, False),
        "reshard": ours("reshard", steps, False),
        "checkpoint": ours("checkpoint", steps, False),
        "fewer samples": ours("reshard", steps, True),
    }
    if "DDP" in name:
        made["like torchft"] = lambda _, length_s: Healing(
            step_s, CARDS, length_s
        )
    elif "k =" not in name:
        made["like Oobleck"] = lambda _, length_s: Oobleck(
            LAYERS, step_s, length_s
        )
        made["like ReCycle"] = lambda _, length_s: ReCycle(
            LAYERS, step_s, length_s
        )
    return made


def efficiency(
    make: Make,
    kind: Kind,
    schedule: list[Event],
    failure_free: float,
    length_s: float = LENGTH_S,
) -> float:
    """Average throughput by that without failures, on the compute that is left.

    Args:
        make: What is played.
        kind: What the schedule is of.
        schedule: Failures.
        failure_free: Samples a second of all cards.
        length_s: How long the schedule is.
    """
    left = compute_left(schedule, length_s, CARDS)
    return make(kind, length_s).play(schedule) / (failure_free * left)


def read_steps() -> dict[str, dict[int, Step]]:
    """What was recorded."""
    found = json.loads((HERE / "steps.json").read_text())
    return {
        name: {int(ranks): Step(**row) for ranks, row in rows.items()}
        for name, rows in found.items()
    }


def rows_of(name: str, steps: dict[int, Step]) -> Iterable[list[str]]:
    """A table of a training, by kinds of schedules."""
    made = policies(name, steps)
    yield ["schedule", *made, "worst of `auto`"]
    for label, kind in KINDS.items():
        schedules = [draw(kind, seed, LENGTH_S, CARDS) for seed in SEEDS]
        found = {
            each: [
                efficiency(make, kind, schedule, SAMPLES / steps[CARDS].step_s)
                for schedule in schedules
            ]
            for each, make in made.items()
        }
        check(label, found)
        yield [
            label,
            *(f"{statistics.fmean(each):.1%}" for each in found.values()),
            f"{min(found[AUTO]):.1%}",
        ]


def check(label: str, found: dict[str, list[float]]) -> None:
    """Says where a chooser is behind a fixed policy of the launcher's."""
    fixed = {
        AUTO: ("in place", "reshard", "checkpoint"),
        AUTO_FEWER: (*("in place", "reshard", "checkpoint", "fewer samples"),),
    }
    for chooser, others in fixed.items():
        for other in others:
            for seed, (a, b) in enumerate(
                zip(found[chooser], found[other], strict=True)
            ):
                if a < b:
                    print(
                        f"{label}, seed {seed}: {chooser} {a:.2%} is less "
                        f"than {other} {b:.2%}",
                        file=sys.stderr,
                    )


def tables() -> str:
    """All of them, as the page has them."""
    lines = [""]
    for name, steps in read_steps().items():
        lines += ["", f"**{name}**", ""]
        for number, row in enumerate(rows_of(name, steps)):
            lines.append(f"| {' | '.join(row)} |")
            if not number:
                lines.append("|---" + "|---:" * (len(row) - 1) + "|")
    return "\n".join(lines) + "\n"


def main() -> None:
    logging.getLogger("torch_chameleon.elastic").setLevel(logging.ERROR)
    before = PAGE.read_text().partition(MARK)[0]
    PAGE.write_text(before + MARK + tables())


if __name__ == "__main__":
    main()
