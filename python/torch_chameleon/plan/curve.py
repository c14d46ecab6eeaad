"""The curve: steps within other budgets than the one that is asked about."""

from typing import Any

from torch_chameleon.plan.planner import Planner
from torch_chameleon.plan.process import side_by_side
from torch_chameleon.plan.runs import Figures
from torch_chameleon.plan.traces import swapping_ns

_KS = (1.25, 1.5, 2.0, 3.0, 4.0)
_RAISED = 1.01


def rows_of(planner: Planner, figures: Figures) -> list[Figures]:
    """One row for each budget; those that hold no step are left out.

    Args:
        planner: Has run the script.
        figures: Its answers.
    """
    budgets: list[int | None] = [
        int(planner.peak / k)
        for k in _KS
        if planner.peak / k >= planner.least()
    ]
    gpu = planner.options.gpu
    if figures["fits"] == "swapped":
        figures["swapping_ns"] = swapping_ns(
            figures["trace"], figures["budget_bytes"]
        )
    halves = [half for half in (budgets[0::2], budgets[1::2]) if half]
    found = side_by_side(lambda half: planner.runs.points(gpu, half), halves)
    rows = [_row(planner, point) for half in found for point in half if point]
    order(figures, rows)
    return rows


def _row(planner: Planner, point: Figures) -> Figures:
    budget = point["budget"]
    step = planner.compared(point)
    return {
        "k": planner.peak / budget,
        "budget_bytes": budget,
        "step_ns": step["duration_ns"],
        "swapping_ns": swapping_ns(planner.trace_of(point, step), budget),
        "bytes_in": step["bytes_in"],
        "bytes_out": step["bytes_out"],
    }


def order(figures: Figures, rows: list[Figures]) -> None:
    """Makes no budget slower than a smaller one.

    Each is a run of its own, whose plan may be a little better or worse than
    its neighbours'; so a step takes at least what it takes with more memory,
    and a row says as "alone_ns" what it took where that was less. The answer
    was given: rows with more memory take no longer than it.
    By swapping alone it takes at least as long as with what else ships, which
    does nothing where swapping alone is faster; its figure is the planner's,
    which knows no delays between ops.

    Args:
        figures: The answers.
        rows: Of the curve; sorted then, from large to small.
    """
    rows.sort(key=lambda row: row["budget_bytes"], reverse=True)
    swapped = figures["fits"] == "swapped"
    for name in ("step_ns", "swapping_ns"):
        answer = figures.get(name) if swapped else None
        least = figures["in_memory_ns"]
        for row in rows:
            if row[name] is None:
                continue
            if answer is not None:
                if row["budget_bytes"] >= figures["budget_bytes"]:
                    row[name] = min(row[name], answer)
                else:
                    least = max(least, answer)
            if name == "step_ns" and row[name] * _RAISED < least:
                row["alone_ns"] = row[name]
            row[name] = least = max(least, row[name])
    points: list[dict[str, Any]] = [*rows, figures] if swapped else [*rows]
    for point in points:
        if point.get("swapping_ns") is not None:
            point["swapping_ns"] = max(point["swapping_ns"], point["step_ns"])
