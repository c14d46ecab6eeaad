"""`python -m torch_chameleon plan train.py`: will it fit, and how slow.

Runs the first steps of a training script, unmodified, on a simulated GPU:
first with room for everything, which gives its peak and the time of a step in
memory; then within the budget, with the code that would swap on the real
card. A curve over budgets comes from the planner's model of the recorded step,
swapping alone. All times are modelled.
"""

import argparse
import contextlib
import json
import pathlib
import shutil
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from torch_chameleon import _C
from torch_chameleon.plan.arguments import parse
from torch_chameleon.plan.process import ScriptError, run_script, stop
from torch_chameleon.plan.report import text_of
from torch_chameleon.plan.script import Run

_KS = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0)
_RECORDING_STEPS = 3  # the optimizer's state is there from the second on
_MOST_TIMES = 4.0  # config.oversubscription's default
_HIDDEN = 1.02  # so many times the step in memory counts as hidden
_LINK_FACTORS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: The command line, default the process's.

    Returns:
        The exit status: 0 if the script fits, swapped or not, else 1.
    """
    options = parse(arguments)
    if not pathlib.Path(options.script).is_file():
        raise SystemExit(f"torch_chameleon plan: no file {options.script}")
    try:
        with _signals_as_interrupt():
            return _main(options)
    except KeyboardInterrupt:
        raise SystemExit("torch_chameleon plan: interrupted") from None


@contextlib.contextmanager
def _signals_as_interrupt() -> Iterator[None]:
    """So that no temporary folder and no process is left behind."""
    changed = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) == signal.SIG_DFL
    ]
    for number in changed:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


def _main(options: argparse.Namespace) -> int:
    try:
        budget = None if options.budget is None else _bytes(options.budget)
        with tempfile.TemporaryDirectory(
            prefix="chameleon-plan-", ignore_cleanup_errors=True
        ) as folder:
            planner = _Planner(options, pathlib.Path(folder))
            figures = planner.figures(budget)
            if options.cards:
                figures["cards"] = planner.cards()
            figures["kept_away"] = planner.kept_away
    except (ScriptError, ValueError) as error:
        raise SystemExit(f"torch_chameleon plan: {error}") from None
    print(text_of(figures))
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    if options.plot is not None:
        from torch_chameleon.plan.plot import write_plot

        if not write_plot(options.plot, figures):
            print("No picture: matplotlib is missing (pip install matplotlib)")
    return 0 if figures["fits"] != "no" else 1


def _bytes(text: str) -> int:
    try:
        return _C.parse_bytes(text)
    except ValueError as error:
        raise ValueError(f"--budget: {error}") from None


class _Planner:
    """Runs a script as often as the answers need."""

    def __init__(self, options: Any, folder: pathlib.Path) -> None:
        self.script: str = options.script
        self.arguments: list[str] = options.arguments
        self.gpu: str = options.gpu
        self.steps: int = options.steps
        self.folder = folder
        self.peak = 0
        self.kept_away: dict[str, list[str]] = {}
        self.recording_budget: int | None = None
        self.profiles = {row["name"]: row for row in _C.gpu_profiles()}

    def run(
        self, gpu: str, folder: pathlib.Path | None = None, **rest: Any
    ) -> dict[str, Any]:
        """One run, whose writes no other run sees."""
        folder = folder or pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        result = run_script(
            Run(script=self.script, arguments=self.arguments, gpu=gpu, **rest),
            folder,
        )
        shutil.rmtree(folder / "upper", ignore_errors=True)
        for kind, paths in result["kept_away"].items():
            before = self.kept_away.get(kind, [])
            self.kept_away[kind] = sorted({*before, *paths})
        return result

    def recorded(self, gpu: str, budget: int | None) -> str:
        """Runs a few steps; the trace of the last."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        trace = str(folder / "trace.jsonl")
        result = self.run(
            gpu,
            folder,
            steps=_RECORDING_STEPS,
            budget=budget,
            policy="lru",
            trace=trace,
        )
        self.peak = max(self.peak, result["peak_logical_bytes"])
        return trace

    def figures(self, budget: int | None) -> dict[str, Any]:
        """All answers for the card."""
        card = self.profiles[self.gpu]
        budget = card["memory_bytes"] if budget is None else budget
        roomy = self.recorded(self.gpu, None)
        compute_ns = _C.what_if(roomy, [], 1.0)["compute_ns"]
        op, op_bytes = largest_op(roomy)
        figures: dict[str, Any] = {
            "script": self.script,
            "gpu": self.gpu,
            "memory_bytes": card["memory_bytes"],
            "budget_bytes": budget,
            "peak_bytes": self.peak,
            "largest_op": op,
            "largest_op_bytes": op_bytes,
            "in_memory_ns": compute_ns,
            "link_bytes_per_s": card["link_in_bytes_per_s"],
        }
        # Optimizers' lists go in chunks that depend on the budget; those of
        # the least one fit all others.
        self.recording_budget = max(
            int(self.peak / _MOST_TIMES), int(op_bytes * 1.1)
        )
        trace = self.recorded(self.gpu, self.recording_budget)
        figures["curve"] = curve(trace, self.peak, self.recording_budget)
        if self.peak <= budget:
            return figures | {"fits": "in memory", "step_ns": compute_ns}
        if self.peak > _MOST_TIMES * budget or op_bytes > budget:
            return figures | {"fits": "no"}
        result = self.run(self.gpu, steps=self.steps, budget=budget)
        step = result["steps"][-1]
        return figures | {
            "fits": "swapped",
            "step_ns": step["duration_ns"],
            "bound_ns": step["bound_ns"],
            "stall_ns": step["stall_ns"],
            "bytes_in": step["bytes_in"],
            "bytes_out": step["bytes_out"],
            "host_bytes": result["peak_host_bytes"],
            "link_factor": hiding_factor(trace, budget),
        }

    def cards(self) -> list[dict[str, Any]]:
        """One row for each known card, with its whole memory."""

        def row(profile: dict[str, Any]) -> dict[str, Any]:
            trace = self.recorded(profile["name"], self.recording_budget)
            memory = profile["memory_bytes"]
            answer = _C.what_if(trace, [memory], 1.0)
            step = answer["steps"][0]
            too_much = self.peak > _MOST_TIMES * memory
            return {
                "gpu": profile["name"],
                "memory_bytes": memory,
                "in_memory_ns": answer["compute_ns"],
                "step_ns": None
                if step is None or too_much
                else step["duration_ns"],
            }

        with ThreadPoolExecutor(2) as pool:
            try:
                return list(pool.map(row, self.profiles.values()))
            finally:  # after an error or Ctrl-C, which reaches no other thread
                stop()


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


def curve(trace: str, peak: int, least: int) -> list[dict[str, Any]]:
    """What a step takes with a part of the peak, by the planner's model.

    Args:
        trace: The step.
        peak: Bytes that live at a time.
        least: No budget below that.
    """
    budgets = [int(peak / k) for k in _KS if peak / k >= least]
    answer = _C.what_if(trace, budgets, 1.0)
    return [
        {
            "k": peak / budget,
            "budget_bytes": budget,
            "step_ns": step["duration_ns"],
            "bytes_in": step["bytes_in"],
            "bytes_out": step["bytes_out"],
        }
        for budget, step in zip(budgets, answer["steps"], strict=True)
        if step is not None
    ]


def hiding_factor(trace: str, budget: int) -> float | None:
    """How many times as fast the link would have to be to hide all moves.

    Args:
        trace: The step.
        budget: HBM.

    Returns:
        The factor; None: no link hides them.
    """
    for factor in _LINK_FACTORS:
        answer = _C.what_if(trace, [budget], factor)
        step = answer["steps"][0]
        if step is None:
            return None
        if step["duration_ns"] <= _HIDDEN * answer["compute_ns"]:
            return factor
    return None
