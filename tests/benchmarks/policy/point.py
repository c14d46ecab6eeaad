"""One point of the benchmark: a training on the simulated GPU, all modelled.

    python point.py ARGUMENTS

ARGUMENTS are those of `train` as a JSON object; the figures are the last line
of what it prints. A point is a process of its own, since a device is set up
once. Nothing in it depends on real time, so it prints the same every time.
"""

from __future__ import annotations

import gc
import json
import pathlib
import statistics
import sys
import warnings
from collections.abc import Callable

import torch
import torch_chameleon
from torch_chameleon import _testing, config, swap_stats

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from workloads import SMALL, VARYING, WORKLOADS  # noqa: E402

MOST_WARM_UP = 24  # steps in which plans are compared
STEADY_STEPS = 3  # a run ends when so many in a row take the same time,
STEADY_SHARE = 1e-4  # within this share of it; figures are their means
FIRST_STEPS = 8  # else figures are means of all but these, and a run ends when
KNOWN_SHARE = 3e-4  # their standard error is no more than this share,
MOST_STEPS = 72  # or after so many
VARYING_STEPS = 24  # of a run whose steps differ: each has a bound of its own
UNLIMITED = 2 << 40


def simulate(gpu: str, budget: int, policy: str) -> None:
    """Sets up the device, with room for everything beside the budget."""
    config.physical_device = "simulated"
    config.simulated_gpu = {
        "base": gpu,
        "memory": "2TiB",
        "host_memory": "2TiB",
        "name": gpu,
    }
    config.hbm_budget = budget
    config.oversubscription = 64.0
    config.policy = "forecast" if policy == "joint" else policy
    config.recompute = "auto" if policy == "joint" else "off"


class Steps:
    """Runs steps one after the other, like a program that reads its losses.

    The host waits for the ops of each. Copies that none of them waited for go
    on beside the next step, which is timed from the last op of this one.
    """

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step
        self._last = self._now()

    def __call__(self) -> dict:
        """What one step took, on the simulated clock, and its counters."""
        torch_chameleon.reset_swap_stats()
        self._step()
        end = self._now()
        torch_chameleon.step()
        end.synchronize()
        stats = swap_stats() | {"ms": self._last.elapsed_time(end)}
        self._last = end
        # What is in a cycle dies here, not when the collector likes.
        gc.collect()
        return stats

    @staticmethod
    def _now() -> torch.Event:
        event = torch.Event("chameleon", enable_timing=True)
        event.record()
        return event


def export(folder: str, number: int) -> None:
    """Writes the trace of the last step.

    Durations are exact if a timeline was recorded: then all ops are timed, not
    a few. It costs the host time, so figures are of steps without it where all
    steps are alike.
    """
    torch_chameleon.profiler.record_timeline(False)
    file = pathlib.Path(folder) / f"step_{number:03}.jsonl"
    torch_chameleon.profiler.export_trace(file)
    torch_chameleon.profiler.record_timeline()


def is_comparing(steps: int) -> bool:
    """Whether the policy still looks for the best of several plans."""
    planned = 3 if config.policy != "lru" else 0
    return steps < planned or _testing.forecast_costs()["is_trying"]


def is_steady(times: list[float]) -> bool:
    """Whether the last steps took the same time."""
    last = times[-STEADY_STEPS:]
    return (
        len(times) > STEADY_STEPS
        and max(last) - min(last) <= STEADY_SHARE * last[-1]
    )


def is_known(times: list[float]) -> bool:
    """Whether the mean of all but the first steps says what a step takes."""
    counted = times[FIRST_STEPS:]
    if len(counted) < FIRST_STEPS:
        return False
    error = statistics.stdev(counted) / len(counted) ** 0.5
    return error <= KNOWN_SHARE * statistics.mean(counted)


def train(
    workload: str,
    gpu: str,
    budget: int = UNLIMITED,
    policy: str = "lru",
    traces: str = "",
) -> dict:
    """Trains until steps take the same time.

    Args:
        workload: Its name.
        gpu: A profile's name.
        budget: Bytes of HBM.
        policy: Which one swaps; "joint" is `forecast` that may re-run ops.
        traces: A folder for the traces of the steps that the figures are of,
            or of one more, where all are the same. Empty: none.

    Returns:
        The figures, means over the last steps.
    """
    warnings.simplefilter("ignore")
    gc.disable()
    simulate(gpu, budget, policy)
    torch.manual_seed(0)
    step = (WORKLOADS | SMALL)[workload]()
    gc.collect()
    gc.freeze()
    torch_chameleon.step()  # what came before is no part of the first one
    torch.chameleon.synchronize()
    run_step = Steps(step)
    varies = workload in VARYING
    if varies and traces:
        torch_chameleon.profiler.record_timeline()  # see export()
    warm_up: list[dict] = []
    while (
        not varies  # figures are of the same steps, whatever the policy
        and len(warm_up) < MOST_WARM_UP
        and is_comparing(len(warm_up))
    ):
        warm_up.append(run_step())
    rows: list[dict] = []
    steady = done = False
    while not done:
        rows.append(run_step())
        if varies:
            if traces and len(rows) > FIRST_STEPS:
                export(traces, len(rows))
            done = len(rows) == VARYING_STEPS
        else:
            times = [row["ms"] for row in rows]
            steady = is_steady(times)
            done = steady or is_known(times) or len(rows) == MOST_STEPS
    if traces and not varies:
        torch_chameleon.profiler.record_timeline()
        run_step()
        export(traces, len(rows))
    of_mean = rows[-STEADY_STEPS:] if steady else rows[FIRST_STEPS:]

    def mean(key: str) -> float:
        return sum(row[key] for row in of_mean) / len(of_mean)

    rows = warm_up + rows
    ms, times = mean("ms"), [row["ms"] for row in rows]
    return {
        "ms": ms,
        "steps": len(rows),
        "mean_of": len(of_mean),
        "alike": not varies,
        "compute_ms": mean("compute_ns") / 1e6,
        "stall_share": mean("stall_ns") / 1e6 / ms,
        "in_gb": mean("bytes_in") / 1e9,
        "out_gb": mean("bytes_out") / 1e9,
        "faults": mean("faults"),
        "evictions": mean("evictions"),
        "compactions": mean("compactions"),
        "rerun_ops": mean("rerun_ops"),
        "rerun_ms": mean("rerun_ns") / 1e6,
        "prefetched_gb": mean("prefetched_bytes") / 1e9,
        "peak_bytes": max(row["peak_resident_bytes"] for row in rows),
        "steps_ms": [round(time, 3) for time in times],
    }


if __name__ == "__main__":
    print(json.dumps(train(**json.loads(sys.argv[1]))))
