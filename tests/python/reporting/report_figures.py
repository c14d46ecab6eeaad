"""Figures of a report, of a run of which nothing or little is known."""

from torch_chameleon import _C
from torch_chameleon._report.figures import Figures


def empty_figures(**changes):
    stats = dict.fromkeys(_C.swap_stats(0), 0) | {
        "hbm_budget": 100,
        "host_budget": 1000,
        "steps": 4,
    }
    options = {spec["key"]: spec["default"] for spec in _C.option_specs()}
    made = Figures("1.0", "cpu", options, stats, None)
    for key, value in changes.items():
        setattr(made, key, value)
    if made.step is not None and "step_ns" not in changes:
        made.step_ns = made.step["duration_ns"]
        made.waited_ns = made.step["stall_ns"]
    return made


def step_figures(**changes):
    names = ("duration_ns", "compute_ns", "stall_ns", "bytes_in", "bytes_out")
    names += ("mirror_bytes_out", "other_ns", "bound_ns", "host_bytes", "ops")
    names += ("forecast_hits", "forecast_misses")
    return dict.fromkeys(names, 0) | {"plan": None} | changes
