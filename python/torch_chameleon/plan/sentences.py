"""What is said of the steps that were seen, and of what does not fit."""

import math
from typing import Any

from torch_chameleon._units import duration, size

Figures = dict[str, Any]


def in_memory(figures: Figures) -> str:
    """The time of a step with room for everything.

    Args:
        figures: Of `plan`.
    """
    text = f"{duration(figures['in_memory_ns'])} in memory"
    longest_ns = figures["seen"]["longest_ns"]
    if longest_ns is None:
        return text
    return f"{text}, the longest {duration(longest_ns)}"


def swapped(figures: Figures) -> str:
    """The time of a step within the budget, beside the one in memory.

    Args:
        figures: Of `plan`, of a script that is swapped.
    """
    text = duration(figures["step_ns"])
    if figures.get("longest_ns") is not None:
        text += f", the longest {duration(figures['longest_ns'])}"
    return f"{text}; {in_memory(figures)}"


def longest(figures: Figures) -> str:
    """How much longer the longest step takes within the budget.

    Args:
        figures: Of `plan`, of a script that is swapped.
    """
    longest_ns = figures.get("longest_ns")
    if longest_ns is None:
        return ""
    times = longest_ns / figures["seen"]["longest_ns"]
    return f", the longest {times:.2f} times"


def steps(figures: Figures) -> str:
    """How many there were to see, and of which kinds.

    Args:
        figures: Of `plan`.
    """
    seen = figures["seen"]
    parts = [_how_many(seen)]
    if seen["highest"] is not None:
        parts.append(
            f"the {ordinal(seen['highest'])} took the most, "
            f"{size(seen['highest_bytes'])}, a usual one "
            f"{size(seen['usual_bytes'])}"
        )
    if seen["with_more_ops"]:
        parts.append(
            f"{seen['with_more_ops']} with more ops than most, as a "
            "validation pass has"
        )
    if seen["with_fewer_ops"]:
        parts.append(
            f"{seen['with_fewer_ops']} with fewer ops than most, as where one "
            "of several optimizers steps"
        )
    if seen["ended"]:
        parts.append("then the script ended")
    elif seen["changing"] and "failure" not in figures:
        parts.append(
            "they still changed, so later ones may need more: --steps "
            f"{2 * seen['asked']} sees more"
        )
    return "; ".join(parts)


def _how_many(seen: Figures) -> str:
    if seen["sizes"] > 1:
        return f"{seen['seen']} seen, of {seen['sizes']} sizes: they differ"
    return f"{seen['seen']} seen, alike but for the first"


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th and so on.

    Args:
        number: From 1.
    """
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def not_known(figures: Figures) -> str:
    """Why there is no answer.

    Args:
        figures: Of `plan`, of a script that failed.
    """
    seen = figures["seen"]["seen"]
    return (
        f"not known: behind step {seen} the script failed with "
        f"{figures['failure']}; --steps {seen} looks at those before it alone"
    )


def why_not(figures: Figures) -> str:
    """Which limit binds, and what would change it.

    Args:
        figures: Of `plan`, of a script that does not fit.
    """
    if figures["why"] == "host":
        return _host_is_small(figures)
    budget = figures["budget_bytes"]
    start = f"no, not into {size(budget)}: "
    if figures["limit"] == "run":
        return f"{start}a run within it ended with {figures['error']}"
    start += f"it needs {size(figures['least_budget_bytes'])}, "
    if figures["limit"] == "op":
        return f"{start}for {figures['largest_op']} alone"
    needed = math.ceil(figures["peak_bytes"] / budget * 10) / 10
    return (
        f"{start}since tensors may be {figures['oversubscription']:g} times "
        f"the budget ({figures['oversubscription_source']}) and its peak is "
        f"{size(figures['peak_bytes'])}; --oversubscription {needed:g} allows "
        "for that"
    )


def _host_is_small(figures: Figures) -> str:
    source = figures["host_source"]
    text = (
        f"no, the host is too small: it needs {size(figures['host_bytes'])}, "
        f"and has {size(figures['host_budget_bytes'])} ({source})"
    )
    if source == "--host":
        return text
    return f"{text}; --host says another one's"
