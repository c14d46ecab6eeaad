"""`python -m torch_chameleon demo`: a GPT in a quarter of the memory it needs.

Trains the same model three times on real text: natively, on chameleon without
a limit (which gives the peak), and on chameleon within peak / k. Then it says
whether every bit is the same, and what it cost.
"""

import argparse
import math
import os
import time
from dataclasses import fields
from typing import Any

from torch_chameleon import config
from torch_chameleon.demo.arguments import parse
from torch_chameleon.demo.model import Shape
from torch_chameleon.demo.plot import write_plot
from torch_chameleon.demo.report import print_report, summarize, write_json
from torch_chameleon.demo.run import ProgressBar, run_in_process
from torch_chameleon.demo.train import Run

_FOR_LOOP_STEPS = 2  # the optimizer's state is there from the second on


def _ample_bytes() -> int:
    """A budget that limits nothing here: half of the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def main(arguments: list[str] | None = None) -> int:
    """Runs the demo.

    Args:
        arguments: The command line, default the process's.

    Returns:
        The exit status: 0 if every bit was equal, else 1.
    """
    options = parse(arguments, "python -m torch_chameleon demo")
    settings: dict[str, str | int | float] = {"physical_device": options.device}
    if options.policy is not None:
        settings["policy"] = options.policy
    try:
        with config.patch(**settings):
            pass
    except ValueError as error:
        raise SystemExit(f"torch_chameleon demo: {error}") from None
    options.out.mkdir(parents=True, exist_ok=True)
    runs = _train(options, settings)
    summary = summarize(
        runs["native"],
        runs["unlimited"],
        runs["limited"],
        runs["for_loop"],
        options.k,
    )
    print_report(summary)
    write_json(options.out / "demo.json", summary, runs)
    if write_plot(options.out / "demo.png", summary, runs["limited"]):
        print(f"Memory over time: {options.out / 'demo.png'}")
    else:
        print("No picture: matplotlib is missing (pip install matplotlib)")
    print(f"All figures: {options.out / 'demo.json'}")
    return 0 if summary["losses_equal"] and summary["states_equal"] else 1


def _train(
    options: argparse.Namespace, settings: dict[str, str | int | float]
) -> dict[str, Any]:
    """Runs all trainings; returns their results by name."""
    sizes = (getattr(options, field.name) for field in fields(Shape))
    shape, steps = Shape(*sizes), options.steps
    unlimited = {**settings, "hbm_budget": _ample_bytes()}
    started = time.monotonic()
    with ProgressBar(3 * steps + _FOR_LOOP_STEPS) as bar:

        def train(name: str, **rest: Any) -> Any:
            bar.start(name)
            run = Run(shape=shape, seed=options.seed, **rest)
            return run_in_process(run, bar.advance)

        results = {
            "native": train("native", steps=steps, device="cpu", config={}),
            "unlimited": train(
                "chameleon, no limit",
                steps=steps,
                device="chameleon",
                config=unlimited,
            ),
            "for_loop": train(
                "peak of for-loop AdamW",
                steps=_FOR_LOOP_STEPS,
                device="chameleon",
                config=unlimited,
                foreach=False,
                generates=False,
            ),
        }
        peak = results["unlimited"]["stats"]["peak_logical_bytes"]
        limited = {**settings, "hbm_budget": math.ceil(peak / options.k)}
        if options.k > (config.oversubscription or 0):
            limited["oversubscription"] = options.k
        results["limited"] = train(
            f"chameleon, peak / {options.k:g}",
            steps=steps,
            device="chameleon",
            config=limited,
        )
    if "oversubscription" in limited:
        print(f"config.oversubscription was raised to {options.k:g} for this")
    print(f"{time.monotonic() - started:.0f} s in all")
    return results
