"""The table of fewer GPUs, with more of the script's tensors on each."""

import argparse

from torch_chameleon.plan.planner import Planner
from torch_chameleon.plan.runs import Figures, Runs

_TIMES = (2, 4)  # as few
_NAMES = ("peak_bytes", "budget_bytes", "collective_wait_ns")


def rows_of(planner: Planner, figures: Figures) -> list[Figures]:
    """One row for all GPUs, one for a half and for a quarter of them.

    Whole machines go first. A script with a batch of its own on each GPU has
    fewer samples in a step then.

    Args:
        planner: Has run the script.
        figures: Its answers.
    """
    rows = [_row(planner.options, figures)]
    for times in _TIMES:
        options = _fewer(planner.options, times)
        if options is not None:
            runs = Runs(options, planner.runs.folder)
            rows.append(_row(options, Planner(options, runs).figures()))
    return rows


def _fewer(
    options: argparse.Namespace, times: int
) -> argparse.Namespace | None:
    gpus, rest = divmod(options.gpus, times)
    if rest or gpus < 2:
        return None
    nodes = max(1, options.nodes // times)
    if gpus % nodes:
        return None
    return argparse.Namespace(**{**vars(options), "gpus": gpus, "nodes": nodes})


def _row(options: argparse.Namespace, figures: Figures) -> Figures:
    return {name: figures[name] for name in _NAMES} | {
        "gpus": options.gpus,
        "nodes": options.nodes,
        "step_ns": figures.get("step_ns"),
    }
