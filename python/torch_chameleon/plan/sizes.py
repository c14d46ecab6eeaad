"""Of which sizes the steps of a training are.

Batches may differ, and a validation pass may lie between two steps. With room
for everything a step's size is its number of ops and the time of their
kernels. The first step also makes the model and the optimizer's state, so its
size is not known; its peak counts.
"""

from collections.abc import Iterable
from typing import Any

from torch_chameleon.plan.steps import figures_of, usual

_ALIKE = 0.01
_LARGER = 1.05  # times another one: told apart
_MOST = 4  # times the steps that are asked for, while they change

Step = dict[str, Any]


def same(one: Step, other: Step) -> bool:
    """Whether two steps are of one size.

    Args:
        one: Figures of a step, with room for everything.
        other: Those of another one.
    """
    change = abs(one["compute_ns"] - other["compute_ns"])
    is_near = bool(change <= _ALIKE * other["compute_ns"])
    return is_near and one["ops"] == other["ops"]


def is_new(steps: list[Step], number: int) -> bool:
    """Whether a step was of a size, or had a peak, that none before it had.

    Args:
        steps: Figures of all steps, each with its "peak_bytes".
        number: Of the step, from 0.
    """
    step, before = steps[number], steps[:number]
    peak = max((each["peak_bytes"] for each in before), default=0)
    if step["peak_bytes"] > (1 + _ALIKE) * peak:
        return True
    return not any(same(each, step) for each in before[1:])


def are_seen(steps: list[Step], least: int) -> bool:
    """Whether more steps would hardly be of another size.

    Args:
        steps: Figures of all steps so far.
        least: So many are wanted; four times as many are enough.
    """
    return len(steps) >= _MOST * least or (
        len(steps) >= least and not are_changing(steps, least)
    )


def are_changing(steps: list[Step], least: int) -> bool:
    """Whether the last steps still brought something new.

    Args:
        steps: Figures of all steps.
        least: So many were wanted; it is about the latter half of as many.
    """
    quiet = (least - 1) // 2
    numbers = range(len(steps))[max(1, len(steps) - quiet) :]
    return any(is_new(steps, number) for number in numbers)


def last_new(steps: list[Step]) -> int:
    """The number of the last step that brought something new, from 0.

    Args:
        steps: Figures of all steps, at least one.
    """
    return max(n for n in range(len(steps)) if is_new(steps, n))


def last_of_each(steps: list[Step]) -> list[Step]:
    """The last step of each size, whose trace is the most exact one.

    Args:
        steps: Figures of all steps. The first two are left out: what dies
            between two steps is known when ops have come again.
    """
    return _one_of_each(reversed(steps[2:]))


def _one_of_each(steps: Iterable[Step]) -> list[Step]:
    """The first of each size, in their order."""
    found: list[Step] = []
    for step in steps:
        if not any(same(each, step) for each in found):
            found.append(step)
    return found


def summary(steps: list[Step]) -> dict[str, Any]:
    """What there was to see.

    Args:
        steps: Figures of all steps, two or more.

    Returns:
        How many steps, of how many sizes; how many had more and fewer ops
        than most; the number from 1 of the one with the highest peak, that
        peak and a usual one's; the number and time of the longest, but for the
        first. What does not differ by 5 % is None.
    """
    highest = max(steps, key=lambda step: step["peak_bytes"])
    ordinary = figures_of(steps)
    longest = max(steps[1:], key=lambda step: step["duration_ns"])
    changes = [each["ops"] - ordinary["ops"] for each in steps[1:]]
    more = sum(change > 0 for change in changes)
    fewer = sum(change < 0 for change in changes)
    most_are_alike = len(usual(steps)) > more + fewer
    differs = highest["peak_bytes"] > _LARGER * ordinary["peak_bytes"]
    longer = longest["duration_ns"] > _LARGER * ordinary["duration_ns"]
    number = steps.index(highest)
    return {
        "seen": len(steps),
        "sizes": len(_one_of_each(steps[1:])) + (differs and number == 0),
        "with_more_ops": more if most_are_alike else 0,
        "with_fewer_ops": fewer if most_are_alike else 0,
        "highest": number + 1 if differs else None,
        "highest_bytes": highest["peak_bytes"],
        "usual_bytes": ordinary["peak_bytes"],
        "longest": steps.index(longest) + 1 if longer else None,
        "longest_ns": longest["duration_ns"] if longer else None,
    }


def like(steps: list[Step], within: list[Step], step: Step) -> list[Step]:
    """Steps of one size, within a budget.

    Args:
        steps: Those with room for everything; they say which have the size.
        within: Those within the budget, by the same numbers.
        step: One with room, which has the size.
    """
    numbers = {each["number"] for each in steps[1:] if same(each, step)}
    return [each for each in within[1:] if each["number"] in numbers]
