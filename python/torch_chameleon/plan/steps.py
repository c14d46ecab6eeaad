"""Which steps of a training are compared, and when there were enough.

A step here is what ran from one optimizer's step to the next. Where a
validation pass lies between them it is no step of the training, so only the
usual ones count: those with as many ops as most have.
"""

import statistics
from collections import Counter
from typing import Any

_SETTLED = 0.01  # so alike are two steps in a row when plans are made


def usual(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps that are alike, but for the first, which makes things.

    Args:
        steps: Figures of steps in a row, as `profiler.last_step` gives them.
    """
    counts = Counter(step["ops"] for step in steps[1:])
    if not counts:
        return []
    most = max(counts.values())
    if most == 1:
        return steps[1:]  # each is another one
    ops = min(each for each, count in counts.items() if count == most)
    return [step for step in steps[1:] if step["ops"] == ops]


def are_enough(steps: list[dict[str, Any]], most: int) -> bool:
    """Whether another step would tell nothing new.

    Args:
        steps: Of one budget.
        most: So many are always enough.
    """
    alike = usual(steps)
    if not alike or alike[-1] is not steps[-1]:
        return len(steps) >= 2 * most  # it ends with one that is compared
    if len(steps) >= most:
        return True
    if len(alike) < 2:
        return False
    before, last = alike[-2:]
    if _moves(before) and not _moves(last):
        return False  # a plan that needs no bytes took over in between
    if _moves(last) and _plan(before) != _plan(last):
        return False  # it has just been made, or is not there yet
    change = abs(last["duration_ns"] - before["duration_ns"])
    return bool(change <= _SETTLED * before["duration_ns"])


def _moves(step: dict[str, Any]) -> bool:
    return bool(step["bytes_in"] or step["bytes_out"])


def _plan(step: dict[str, Any]) -> object:
    plan = step["plan"]
    # Without actions nothing was planned; equal to no other then.
    return (
        (plan["actions"], plan["modelled_duration_ns"])
        if plan and plan["actions"]
        else object()
    )


def figures_of(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """The step to report: the middle one of the later half that are alike.

    Args:
        steps: Of one budget, two or more.
    """
    return middle(usual(steps))


def middle(alike: list[dict[str, Any]]) -> dict[str, Any]:
    """The middle one of the later half, by its time.

    Args:
        alike: Steps in a row, at least one.
    """
    later = alike[len(alike) // 2 :]
    duration = statistics.median_low(step["duration_ns"] for step in later)
    return next(step for step in later if step["duration_ns"] == duration)
