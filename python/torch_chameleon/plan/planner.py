"""Whether and how a script fits, from as few runs of it as that takes."""

import argparse
import math
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from torch_chameleon import _C
from torch_chameleon._changes import advice, lives
from torch_chameleon._units import size
from torch_chameleon.plan import clusters, machine, sizes
from torch_chameleon.plan.kinds import kind_of
from torch_chameleon.plan.process import ScriptError
from torch_chameleon.plan.runs import Figures, Runs
from torch_chameleon.plan.steps import figures_of, middle, usual
from torch_chameleon.plan.traces import largest_op
from torch_chameleon.plan.trust import trust

_T = TypeVar("_T")
_SURELY = 1.25  # times its peak holds a script, whatever its holes
_MARGIN = 1.1  # over the largest op, for what it allocates beside
_HOST_IS_TIGHT = 0.8  # when this share of it is used
_SLOWS = 0.95
_OPTION = "oversubscription"


class Planner:
    """Runs a script as often as the answers need."""

    def __init__(self, options: argparse.Namespace, runs: Runs) -> None:
        self.options = options
        self.runs = runs
        # Known when `figures` has run it once.
        self.peak = self.op_bytes = 0
        self.oversubscription = 1.0
        self.steps: list[Figures] = []

    def figures(self) -> Figures:
        """All answers for the card."""
        card = _C.gpu_profile(self.options.gpu)
        seen = told(
            f"steps with room for everything, on {card['name']}",
            lambda: self.runs.run(self.options.gpu, [None]),
        )
        if not seen["points"]:
            raise ScriptError(
                f"{self.options.script} ended with {seen['out_of_memory']}"
            )
        roomy = seen["points"][0]
        self.steps = roomy["each"]
        self.runs.least = sizes.last_new(self.steps) + 1
        op, self.op_bytes = self._largest_op(roomy["trace"])
        self.peak = roomy["peak_logical_bytes"]
        self.oversubscription = roomy[_OPTION]
        ordinary = f"{roomy['trace']}.{roomy['number']}"
        budget = self.options.budget
        figures = {
            "script": self.options.script,
            "gpu": card["name"],
            "memory_bytes": card["memory_bytes"],
            "budget_bytes": budget
            or machine.default_budget(card["memory_bytes"]),
            "budget_is_given": budget is not None,
            "budget_source": self.options.budget_source,
            "host_budget_bytes": self.runs.host,
            "host_source": self.runs.host_source,
            "host_share": self.runs.host_share,
            _OPTION: self.oversubscription,
            f"{_OPTION}_source": self._source(),
            "peak_bytes": self.peak,
            "least_budget_bytes": self.least(),
            "largest_op": op,
            "largest_op_bytes": self.op_bytes,
            "in_memory_ns": roomy["duration_ns"],
            "gpus": self.options.gpus,
            "nodes": self.options.nodes,
            "joined_by": clusters.joined_by(self.options),
            "collective_ns": roomy.get("collective_ns", 0),
            "collective_wait_ns": roomy.get("collective_wait_ns", 0),
            "seen": sizes.summary(self.steps)
            | {
                "ended": seen["ended"],
                "changing": not seen["ended"]
                and sizes.are_changing(self.steps, self.options.steps),
                "asked": self.options.steps,
            },
            "trust": trust(
                kind_of(ordinary, roomy["convolutions"]), card["name"]
            ),
            "evaluation": seen["evaluation"],
            "to_fuse": seen["to_fuse"],
            "states": seen["states"],
            "peaks_after": {},
            "curve": [],
        }
        if seen["failure"] is not None:
            return figures | {"fits": "not known", "failure": seen["failure"]}
        figures |= self._answer(figures["budget_bytes"], roomy["duration_ns"])
        if advice.is_wanted(figures):
            states = sum(seen["states"].values())
            figures["peaks_after"] = self._peaks_after(roomy, states)
        return figures

    def _answer(self, budget: int, in_memory_ns: int) -> Figures:
        if not self.depends(budget):
            gpu = self.options.gpu
            return self.answer_of(gpu, budget, in_memory_ns, None)
        return told(
            f"steps within {size(budget)}",
            lambda: self._within(budget, in_memory_ns),
        )

    def _largest_op(self, trace: str) -> tuple[str, int]:
        """Of all steps, each of a size that no step before it had."""
        return max(
            (
                largest_op(f"{trace}.{number}")
                for number in range(len(self.steps))
                if sizes.is_new(self.steps, number)
            ),
            key=lambda pair: pair[1],
        )

    def _peaks_after(self, roomy: Figures, states: int) -> dict[str, int]:
        """The peak of all steps after a change of the script, by its name.

        Empty where it is not known.
        """
        found = []
        for step in sizes.last_of_each(self.steps):
            trace = f"{roomy['trace']}.{step['number']}"
            found.append(lives.peaks_after(trace, step["peak_bytes"], states))
        behind = roomy["peak_behind_bytes"]
        return lives.highest(found, self.peak, behind, states)

    def _source(self) -> str:
        asked = self.options.oversubscription
        if asked is not None:
            return f"--{_OPTION}"
        if self.oversubscription != float(_C.get_option(_OPTION) or 1):
            return f"config.{_OPTION}, which the script sets"
        return str(self.options.oversubscription_source)

    def least(self) -> int:
        """No budget below it holds the script."""
        live = math.ceil(self.peak / self.oversubscription)
        return max(live, min(int(self.op_bytes * _MARGIN), self.peak))

    def differ(self) -> bool:
        """Whether the steps are of several sizes."""
        return bool(sizes.summary(self.steps)["sizes"] > 1)

    def _within(self, budget: int, in_memory_ns: int) -> Figures:
        gpu = self.options.gpu
        result = self.runs.run(gpu, [budget])
        point = next(iter(result["points"]), None)
        failure = result["failure"]
        if failure is not None and result["seen"] < self.runs.least:
            return {"fits": "not known", "failure": failure}
        answer = self.answer_of(gpu, budget, in_memory_ns, point)
        if (
            point is not None
            and answer["fits"] == "swapped"
            and point["peak_host_bytes"] > _HOST_IS_TIGHT * self.runs.host
        ):
            answer |= self._with_host(budget, answer["step_ns"], in_memory_ns)
        return answer

    def _with_host(
        self, budget: int, step_ns: int, in_memory_ns: int
    ) -> Figures:
        """What a host with room for everything would change, if it does."""
        free = self.runs.run(self.options.gpu, [budget], has_host=False)
        if not free["points"]:
            return {}
        point = free["points"][0]
        free_ns = self.compared(point)["duration_ns"]
        if free_ns >= _SLOWS * step_ns:
            return {}
        return {
            "with_host": {
                "step_ns": max(free_ns, in_memory_ns),
                "host_bytes": point["peak_host_bytes"],
            }
        }

    def depends(self, budget: int) -> bool:
        """Whether steps within a budget say what the peak does not.

        Args:
            budget: Bytes.
        """
        return self.least() <= budget < _SURELY * self.peak

    def answer_of(
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
        in_memory: Figures = {"fits": "in memory", "step_ns": in_memory_ns}
        if budget >= _SURELY * self.peak:
            return in_memory
        if budget < self.least():
            is_op = self.least() * self.oversubscription > self.peak + 1
            limit = "op" if is_op else _OPTION
            return {"fits": "no", "why": "budget", "limit": limit}
        if point is None:
            return self._why_not(gpu, budget)
        moved = [step["bytes_in"] + step["bytes_out"] for step in point["each"]]
        # What the first one moves may be from before it.
        if self.steps[0]["peak_bytes"] <= budget and not any(moved[1:]):
            return in_memory
        step = self.compared(point)
        # There is room; sizes that change may leave holes now and then, and a
        # plan that moves nothing may take some steps to be there.
        moving = sum(map(bool, moved))
        is_usual = not (step["bytes_in"] or step["bytes_out"])
        is_rare = 2 * moving <= len(moved) or not any(moved[-2:])
        if self.peak <= budget and is_usual and is_rare:
            return in_memory | {
                "moved": {
                    "steps": moving,
                    "of": len(moved),
                    "bytes": sum(moved),
                }
            }
        names = ("stall_ns", "bound_ns", "bytes_in", "bytes_out", "host_bytes")
        return {name: step[name] for name in names} | {
            "fits": "swapped",
            "collective_ns": step.get("collective_ns", 0),
            "collective_wait_ns": step.get("collective_wait_ns", 0),
            "step_ns": max(step["duration_ns"], in_memory_ns),
            "longest_ns": self._longest_ns(point),
            "trace": self.trace_of(point, step),
            "peak_host_bytes": point["peak_host_bytes"],
            "settled": point["settled"],
            "steps": point["steps"],
        }

    def _why_not(self, gpu: str, budget: int) -> Figures:
        free = self.runs.run(gpu, [budget], has_host=False)
        if free["points"]:
            needed = free["points"][0]["peak_host_bytes"]
            return {"fits": "no", "why": "host", "host_bytes": needed}
        return {
            "fits": "no",
            "why": "budget",
            "limit": "run",
            "error": free["out_of_memory"],
        }

    def compared(self, point: Figures) -> Figures:
        """A step of the size of the usual one with room for everything.

        Args:
            point: Of a budget.
        """
        within: list[Figures] = point["each"]
        alike = usual(self.steps)
        ordinary = figures_of(self.steps)
        if not all(sizes.same(step, ordinary) for step in alike):
            return middle(
                sizes.like(self.steps, within, ordinary) or usual(within)
            )
        return figures_of(within)

    def _longest_ns(self, point: Figures) -> int | None:
        """The longest step's time; None: they are alike, or it is not there."""
        longest = sizes.summary(self.steps)["longest"]
        if longest is None:
            return None
        step = self.steps[longest - 1]
        found = sizes.like(self.steps, point["each"], step)
        return (
            max(found[-1]["duration_ns"], step["duration_ns"])
            if found
            else None
        )

    def trace_of(self, point: Figures, step: Figures) -> str:
        """The file with the trace of a step.

        Args:
            point: Of the budget.
            step: One of its steps.
        """
        return f"{point['trace']}.{point['each'].index(step)}"


def told(what: str, work: Callable[[], _T]) -> _T:
    """Says on stderr what is done, and how long it took.

    Args:
        what: In words.
        work: Does it.
    """
    begin = time.monotonic()
    print(f"plan: {what} ...", file=sys.stderr, flush=True)
    done = work()
    seconds = time.monotonic() - begin
    print(f"plan: {what}: {seconds:.0f} s", file=sys.stderr, flush=True)
    return done
