"""Which runs of a script a plan needs, and what follows from them."""

import argparse
import json
import pathlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from torch_chameleon import _C
from torch_chameleon.plan import machine
from torch_chameleon.plan.kinds import kind_of
from torch_chameleon.plan.process import run_script, stop
from torch_chameleon.plan.report import size
from torch_chameleon.plan.script import Run
from torch_chameleon.plan.trust import trust

_T = TypeVar("_T")
_KS = (1.25, 1.5, 2.0, 3.0, 4.0)
_SURELY = 1.25  # times its peak holds a script, whatever its holes
_MOST_TIMES = 4.0  # config.oversubscription's default
_MARGIN = 1.1  # over the largest op, for what it allocates beside
_HOST_IS_TIGHT = 0.8  # when this share of it is used
_SLOWS = 0.95
_AT_A_TIME = 2  # runs; each has a planning thread of its own

Figures = dict[str, Any]


class Planner:
    """Runs a script as often as the answers need."""

    def __init__(
        self, options: argparse.Namespace, folder: pathlib.Path
    ) -> None:
        self.options = options
        self.folder = folder
        self.peak = self.op_bytes = 0  # known when `figures` has run it once
        self.kept_away: dict[str, list[str]] = {}
        self.reads: dict[str, None] = {}  # in order
        self.host, self.host_source = options.host, "--host"
        if self.host is None:
            self.host, self.host_source = machine.default_host(options.gpu)

    def figures(self) -> Figures:
        """All answers for the card."""
        gpu = self.options.gpu
        card = _C.gpu_profile(gpu)
        budget = self.options.budget
        roomy = _told(
            f"a step with room for everything, on {card['name']}",
            lambda: self._points(gpu, [None])[0],
        )
        peak, in_memory_ns = roomy["peak_logical_bytes"], roomy["duration_ns"]
        op, op_bytes = largest_op(roomy["trace"])
        self.peak, self.op_bytes = peak, op_bytes
        figures = {
            "script": self.options.script,
            "gpu": card["name"],
            "memory_bytes": card["memory_bytes"],
            "budget_bytes": budget
            or machine.default_budget(card["memory_bytes"]),
            "budget_is_given": budget is not None,
            "host_budget_bytes": self.host,
            "host_source": self.host_source,
            "peak_bytes": peak,
            "least_budget_bytes": self._least(),
            "largest_op": op,
            "largest_op_bytes": op_bytes,
            "in_memory_ns": in_memory_ns,
            "trust": trust(
                kind_of(roomy["trace"], roomy["convolutions"]), card["name"]
            ),
        }
        answer, rows = self._answer_and_curve(figures)
        figures |= answer
        _order(figures, rows)
        figures["curve"] = rows
        return figures

    def _least(self) -> int:
        """No budget below it holds the script."""
        return max(int(self.peak / _MOST_TIMES), int(self.op_bytes * _MARGIN))

    def _answer_and_curve(
        self, figures: Figures
    ) -> tuple[Figures, list[Figures]]:
        gpu, budget = self.options.gpu, figures["budget_bytes"]
        budgets = [
            int(self.peak / k) for k in _KS if self.peak / k >= self._least()
        ]
        if budget >= _SURELY * self.peak and self.options.plot is None:
            budgets = []  # nobody needs less than there is
        halves = [budgets[0::2], budgets[1::2]]
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            try:
                answer = pool.submit(self._answer, figures)
                curves = [
                    pool.submit(
                        _told,
                        "steps within other budgets, for the curve",
                        lambda half=half: self._points(gpu, half),
                    )
                    for half in halves
                    if half
                ]
                found = [point for each in curves for point in each.result()]
                return answer.result(), [
                    _row(self.peak, point) for point in found if point
                ]
            finally:  # after an error or Ctrl-C, which reaches no other thread
                stop()

    def _answer(self, figures: Figures) -> Figures:
        gpu, budget = self.options.gpu, figures["budget_bytes"]
        point = None
        if self._depends(budget):
            point = _told(
                f"steps within {size(budget)}",
                lambda: self._points(gpu, [budget])[0],
            )
        answer = self._answer_of(gpu, budget, figures["in_memory_ns"], point)
        if (
            point is not None
            and answer["fits"] == "swapped"
            and point["peak_host_bytes"] > _HOST_IS_TIGHT * self.host
        ):
            free = self._points(gpu, [budget], has_host=False)[0]
            if free and free["duration_ns"] < _SLOWS * point["duration_ns"]:
                answer["with_host"] = {
                    "step_ns": max(
                        free["duration_ns"], figures["in_memory_ns"]
                    ),
                    "host_bytes": free["peak_host_bytes"],
                }
        return answer

    def _depends(self, budget: int) -> bool:
        """Whether steps within a budget say what the peak does not."""
        return self._least() <= budget < _SURELY * self.peak

    def _answer_of(
        self, gpu: str, budget: int, in_memory_ns: int, point: Figures | None
    ) -> Figures:
        """Whether and how the script fits.

        Args:
            gpu: The card.
            budget: Bytes.
            in_memory_ns: A step there, with room for everything.
            point: Steps within the budget; None: it did not get along, or
                nobody asked, since that does not depend on them.
        """
        in_memory = {"fits": "in memory", "step_ns": in_memory_ns}
        if budget >= _SURELY * self.peak:
            return in_memory
        if budget < self._least():
            return {"fits": "no", "why": "budget"}
        if point is None:
            free = self._points(gpu, [budget], has_host=False)[0]
            if free is None:
                return {"fits": "no", "why": "budget"}
            needed = free["peak_host_bytes"]
            return {"fits": "no", "why": "host", "host_bytes": needed}
        if point["bytes_in"] == point["bytes_out"] == 0:
            return in_memory
        names = ("stall_ns", "bound_ns", "bytes_in", "bytes_out")
        return {name: point[name] for name in names} | {
            "fits": "swapped",
            "step_ns": max(point["duration_ns"], in_memory_ns),
            "swapping_ns": point["swapping_ns"],
            "host_bytes": point["host_bytes"],
            "peak_host_bytes": point["peak_host_bytes"],
            "settled": point["settled"],
            "steps": point["steps"],
        }

    def cards(self, figures: Figures) -> list[Figures]:
        """One row for each known card, with the budget that it gives.

        Args:
            figures: Of the card that was asked about.
        """

        def answer(name: str, budget: int) -> tuple[int, Figures]:
            if name == figures["gpu"] and budget == figures["budget_bytes"]:
                return figures["in_memory_ns"], figures
            budgets: list[int | None] = [None]
            if self._depends(budget):
                budgets.append(budget)
            points = _told(
                f"steps on {name}", lambda: self._points(name, budgets)
            )
            in_memory_ns = points[0]["duration_ns"]
            return in_memory_ns, self._answer_of(
                *(name, budget, in_memory_ns),
                points[-1] if self._depends(budget) else None,
            )

        def row(profile: Figures) -> Figures:
            name, memory = profile["name"], profile["memory_bytes"]
            budget = machine.default_budget(memory)
            in_memory_ns, found = answer(name, budget)
            return {
                "gpu": name,
                "memory_bytes": memory,
                "budget_bytes": budget,
                "in_memory_ns": in_memory_ns,
                "step_ns": found.get("step_ns"),
                "fits": found["fits"],
                "why": found.get("why"),
            }

        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            try:
                rows = list(pool.map(row, _C.gpu_profiles()))
            finally:
                stop()
        return sorted(rows, key=lambda row: row["memory_bytes"])

    def _points(
        self, gpu: str, budgets: list[int | None], has_host: bool = True
    ) -> list[Any]:
        """The script within budgets that fall; None: it did not get along."""
        found: list[Any] = []
        while len(found) < len(budgets):
            asked = budgets[len(found) :]
            result = self._run(gpu, asked, self.host if has_host else None)
            found += result["points"]
            if result["out_of_memory"] is not None:
                break
        return found + [None] * (len(budgets) - len(found))

    def _run(
        self, gpu: str, budgets: list[int | None], host: int | None
    ) -> Figures:
        """One run, whose writes no other run sees."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        run = Run(
            script=self.options.script,
            arguments=self.options.arguments,
            gpu=gpu,
            budgets=budgets,
            # With room for everything nothing goes there.
            host=None if budgets == [None] else host,
            steps=self.options.steps,
            trace=str(folder / "trace"),
        )
        result = run_script(run, folder)
        shutil.rmtree(folder / "upper", ignore_errors=True)
        for kind, paths in result["kept_away"].items():
            before = self.kept_away.get(kind, [])
            self.kept_away[kind] = sorted({*before, *paths})
        self.reads |= dict.fromkeys(result["reads"])
        for number, point in enumerate(result["points"]):
            point["budget"] = budgets[number]
            point["trace"] = f"{run.trace}.{number}"
            point["swapping_ns"] = swapping_ns(point["trace"], point["budget"])
        return result


def _told(what: str, work: Callable[[], _T]) -> _T:
    """Says on stderr what is done, and how long it took."""
    begin = time.monotonic()
    print(f"plan: {what} ...", file=sys.stderr, flush=True)
    done = work()
    seconds = time.monotonic() - begin
    print(f"plan: {what}: {seconds:.0f} s", file=sys.stderr, flush=True)
    return done


def _row(peak: int, point: Figures) -> Figures:
    return {
        "k": peak / point["budget"],
        "budget_bytes": point["budget"],
        "step_ns": point["duration_ns"],
        "swapping_ns": point["swapping_ns"],
        "bytes_in": point["bytes_in"],
        "bytes_out": point["bytes_out"],
    }


def _order(figures: Figures, rows: list[Figures]) -> None:
    """Makes no budget slower than a smaller one.

    Each is a run of its own, whose plan may be a little better or worse than
    its neighbours'; so a step takes at least what it takes with more memory.
    By swapping alone it takes at least as long as with what else ships, which
    does nothing where swapping alone is faster; its figure is the planner's,
    which knows no delays between ops.
    """
    points = [*rows]
    if figures["fits"] == "swapped":
        points.append(figures)
    points.sort(key=lambda point: point["budget_bytes"], reverse=True)
    for name in ("step_ns", "swapping_ns"):
        least = figures["in_memory_ns"]
        for point in points:
            if point[name] is not None:
                point[name] = least = max(least, point[name])
    for point in points:
        if point["swapping_ns"] is not None:
            point["swapping_ns"] = max(point["swapping_ns"], point["step_ns"])
    rows.sort(key=lambda row: row["budget_bytes"], reverse=True)


def swapping_ns(trace: str, budget: int | None) -> int | None:
    """What a step would take by swapping alone, by the planner's model.

    Args:
        trace: The step, as it ran within that budget.
        budget: Bytes; None: there is room for everything.

    Returns:
        The time; None: it does not get along with so little.
    """
    if budget is None:
        return None
    step = _C.what_if(trace, [budget], 1.0)["steps"][0]
    return None if step is None else int(step["duration_ns"])


def largest_op(trace: str) -> tuple[str, int]:
    """The op that needs the most bytes at a time.

    Lists go in pieces; the least has a tensor of each list.

    Args:
        trace: A file that `export_trace` wrote.

    Returns:
        Its name, and the bytes.
    """
    largest = ("", 0)
    with open(trace) as lines:
        for record in map(json.loads, lines):
            if "op" not in record:
                continue
            name = record["op"]
            sizes = [each for _, each in record["in"] + record["out"]]
            if name.startswith(("aten::_foreach", "aten::_fused")) and sizes:
                most = max(sizes)
                size = most * min(sizes.count(most), _lists_of(name))
            else:
                size = sum(sizes) + record.get("workspace", 0)
            largest = max(largest, (name, size), key=lambda pair: pair[1])
    return largest


def _lists_of(name: str) -> int:
    """How many lists of tensors an op takes and returns, at most."""
    op, _, overload = name.removeprefix("aten::").partition(".")
    packet = getattr(torch.ops.aten, op, None)
    found = getattr(packet, overload or "default", None)
    if found is None:
        return 1
    values = [*found._schema.arguments, *found._schema.returns]
    return sum(str(value.type) == "List[Tensor]" for value in values)
