"""One training within a budget of device memory and one of host memory.

    python host_point.py ARGUMENTS

ARGUMENTS are those of `train` as a JSON object; the figures are the last line
of what it prints. All is modelled, and the same every time.
"""

from __future__ import annotations

import gc
import json
import pathlib
import sys
import warnings

import torch
import torch_chameleon
from torch_chameleon import config, profiler, swap_stats

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from integration import training_shapes  # noqa: E402
from point import UNLIMITED, Steps, simulate  # noqa: E402
from workloads import HOST_ONLY, SMALL, WORKLOADS  # noqa: E402

# Of all steps, by their names in swap_stats().
PEAKS = {
    "peak_bytes": "peak_resident_bytes",
    "peak_host_bytes": "peak_host_bytes",
}


def train(
    training: str,
    gpu: str,
    steps: int,
    budget: int = UNLIMITED,
    host: int | None = None,
) -> dict:
    """Trains for some steps, or until it is refused.

    Args:
        training: A name of workloads.py or of training_shapes.py.
        gpu: A profile's name.
        steps: How many.
        budget: Bytes of HBM.
        host: Bytes of host memory; None: there is always room.

    Returns:
        Figures of each step, and `refused`, the message, if it was.
    """
    warnings.simplefilter("ignore")
    gc.disable()
    simulate(gpu, budget, "joint")
    if host is not None:
        config.host_budget = host
    torch.manual_seed(0)
    rows: dict = {"ms": [], "host_bytes": [], "reserved_bytes": []}
    figures = {**dict.fromkeys(PEAKS, 0), **rows, "refused": None}
    makers = WORKLOADS | HOST_ONLY | SMALL
    try:
        step = (makers.get(training) or getattr(training_shapes, training))()
        gc.collect()
        torch_chameleon.step()
        torch.chameleon.synchronize()
        run_step = Steps(step)
        for _ in range(steps):
            row = run_step()
            for kept, key in PEAKS.items():
                figures[kept] = max(figures[kept], row[key])
            rows["ms"].append(row["ms"])
            rows["host_bytes"].append(profiler.last_step()["host_bytes"])
            rows["reserved_bytes"].append(swap_stats()["host_reserved_bytes"])
    except torch.OutOfMemoryError as error:
        figures["refused"] = str(error)
    return figures


if __name__ == "__main__":
    print(json.dumps(train(**json.loads(sys.argv[1]))))
