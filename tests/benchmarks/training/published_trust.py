"""Holds modelled times against timm's published training benchmark.

    python published_trust.py FILE LAYOUT [--gpu NAME] [--models N]

FILE is one of timm's `results/benchmark-train-amp-*.csv` (model, batch, size of
the images, milliseconds a step), LAYOUT "nchw" or "nhwc" as it was measured. A
JSON line for each model: its kind, modelled and measured time; then a line for
each kind, as `trust.json` has it. timm wrote attention out when it measured:
set TIMM_FUSED_ATTN=0 for the same program.
"""

from __future__ import annotations

import argparse
import csv
import json
import pathlib
import tempfile
from collections import defaultdict
from typing import Any

import torch
import torch_chameleon
from measured_trust import row_of
from torch.nn import functional
from torch_chameleon import profiler
from torch_chameleon.plan.kinds import Convolutions, kind_of

LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
STEPS = 3  # the first makes the optimizer's state


def made(name: str, side: int) -> torch.nn.Module:
    """The model; some take images of any size and no argument for it."""
    import timm

    try:
        return timm.create_model(name, img_size=side)
    except TypeError:
        return timm.create_model(name)


def modelled(
    name: str, batch: int, side: int, layout: str
) -> tuple[float, str | None]:
    """A step of timm's benchmark, on the simulated card.

    Returns:
        Milliseconds, and the kind of the training.
    """
    memory_format: Any = LAYOUTS[layout]
    with torch.device("chameleon"):
        model = made(name, side).to(memory_format=memory_format)
        images = torch.randn(batch, 3, side, side)
        labels = torch.randint(0, 1000, (batch,))
    images = images.contiguous(memory_format=memory_format)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    convolutions = Convolutions()
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("chameleon", dtype=torch.float16):
            loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    convolutions.close()
    with tempfile.TemporaryDirectory() as folder:
        trace = pathlib.Path(folder) / "step.jsonl"
        profiler.export_trace(trace)
        kind = kind_of(str(trace), convolutions.shares())
    return profiler.last_step()["duration_ns"] / 1e6, kind


def compared(row: dict[str, str], layout: str) -> dict[str, Any]:
    """A row of the file, with what is modelled of it."""
    name = row["model"]
    measured_ms = float(row["train_step_time"])
    try:
        ms, kind = modelled(
            name,
            int(row["train_batch_size"]),
            int(row["train_img_size"]),
            layout,
        )
    except RuntimeError as error:  # a model that timm no longer has
        return {"model": name, "error": str(error).splitlines()[0]}
    ratio = ms / measured_ms
    return {"model": name, "kind": kind, "ms": ms, "ratio": ratio}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("layout", choices=LAYOUTS)
    parser.add_argument("--gpu", default="rtx3090")
    parser.add_argument("--models", type=int, help="so many, evenly spread")
    options = parser.parse_args()
    torch_chameleon.config.physical_device = "simulated"
    torch_chameleon.config.simulated_gpu = (
        f"base={options.gpu}, memory=2TiB, host_memory=2TiB"
    )
    profiler.record_timeline()
    with options.file.open() as lines:
        rows = list(csv.DictReader(lines))
    step = max(1, len(rows) // (options.models or len(rows)))
    ratios = defaultdict(list)
    for row in rows[::step]:
        found = compared(row, options.layout)
        print(json.dumps(found), flush=True)
        if found.get("kind"):
            ratios[found["kind"]].append(found["ratio"])
    for kind, each in ratios.items():
        print(json.dumps(row_of(kind, None, each)))


if __name__ == "__main__":
    main()
