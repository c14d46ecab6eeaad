"""The table of cards: how a script fits on each known one."""

from torch_chameleon import _C
from torch_chameleon.plan import machine
from torch_chameleon.plan.planner import Planner
from torch_chameleon.plan.process import side_by_side
from torch_chameleon.plan.runs import Figures


def rows_of(planner: Planner, figures: Figures) -> list[Figures]:
    """One row for each known card, with the budget that it gives.

    Args:
        planner: Has run the script.
        figures: Its answers, of the card that was asked about.
    """

    def row(profile: Figures) -> Figures:
        name, memory = profile["name"], profile["memory_bytes"]
        budget = machine.default_budget(memory)
        if (name, budget) == (figures["gpu"], figures["budget_bytes"]):
            in_memory_ns, found = figures["in_memory_ns"], figures
        else:
            in_memory_ns, found = _answer(planner, name, budget)
        return {
            "gpu": name,
            "memory_bytes": memory,
            "budget_bytes": budget,
            "in_memory_ns": in_memory_ns,
            "step_ns": found.get("step_ns"),
            "fits": found["fits"],
            "why": found.get("why"),
        }

    rows = side_by_side(row, _C.gpu_profiles())
    return sorted(rows, key=lambda row: row["memory_bytes"])


def _answer(planner: Planner, name: str, budget: int) -> tuple[int, Figures]:
    budgets: list[int | None] = [None]
    if planner.depends(budget):
        budgets.append(budget)
    # Steps that differ must be the same ones with room and without.
    asked = [[each] for each in budgets] if planner.differ() else [budgets]
    points = [
        point
        for each in asked
        for point in planner.runs.points(name, each, has_traces=False)
    ]
    in_memory_ns = points[0]["duration_ns"]
    point = points[-1] if len(budgets) > 1 else None
    return in_memory_ns, planner.answer_of(name, budget, in_memory_ns, point)
