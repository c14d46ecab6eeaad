"""Draws throughput through three failures: python/docs/elastic.svg.

    python tests/benchmarks/elastic/through_failures.py [--draw]

Two ranks with gloo on this machine, and a checkpoint every 25 steps. Rank 1 is
killed; when it is killed again at once its device is taken to be lost; then the
memory of the rank that is left is gone. The launcher chooses what is done. What
each step's end was goes to results.json beside this file; `--draw` draws that
again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
PLOT = HERE.parents[2] / "python/docs/elastic.svg"
STEPS, MICRO_BATCHES = 240, 4
FAILURES = "kill:1:80:backward,kill:1:81:backward,lose:0:160:backward"
GREY, BLUE, RED = "#777777", "#3b78b8", "#c0504d"
WINDOW = 5  # steps


def worker(out: str) -> None:
    """A rank: rank 0 writes when each step ended."""
    import torch
    import torch.distributed as dist
    import torch_chameleon
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    torch.chameleon.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(512, 512), torch.nn.GELU()] * 4
    model = DistributedDataParallel(
        torch.nn.Sequential(*layers).to("chameleon")
    )
    optimizer = torch.optim.AdamW(model.parameters())
    state = torch_chameleon.elastic.State(
        model=model, optimizer=optimizer, step=0
    )
    while state.step < STEPS:
        for _ in range(MICRO_BATCHES // world):
            x = torch.randn(512, 512, device="chameleon")
            model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.chameleon.synchronize()
        state.step += 1
        state.commit()
        if rank == 0:
            with open(out, "a") as file:
                file.write(f"{time.time()} {state.step} {world}\n")


def measure() -> None:
    """Runs the training; writes RESULTS."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "steps")
        done = subprocess.run(
            [sys.executable, "-m", "torch_chameleon", "elastic",
             "--nproc-per-node", "2", "--checkpoint", f"{folder}/saved",
             "--checkpoint-steps", "25", __file__, "--worker", str(out)],
            env={
                **os.environ,
                "CHAMELEON_PHYSICAL_DEVICE": "cpu",
                "CHAMELEON_CHAOS": FAILURES,
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )  # fmt: skip
        if done.returncode:
            sys.exit(done.stdout)
        rows = [line.split() for line in out.read_text().splitlines()]
    lines = done.stdout.splitlines()
    begin = float(rows[0][0])
    results = {
        "ends": [
            [round(float(at) - begin, 4), int(step), int(world)]
            for at, step, world in rows
        ],
        "choices": [
            line.rpartition("chosen: ")[2]
            for line in lines
            if line.startswith("chameleon: a rank failed: ")
        ],
        "last_line": lines[-1],
    }
    RESULTS.write_text(json.dumps(results) + "\n")


def draw() -> None:
    """Draws RESULTS."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    mpl.rcParams.update(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "elastic",
            "font.family": "sans-serif",
            "font.size": 9,
            "text.color": GREY,
            "axes.labelcolor": GREY,
            "axes.edgecolor": GREY,
            "xtick.color": GREY,
            "ytick.color": GREY,
        }
    )
    results = json.loads(RESULTS.read_text())
    figure, axes = pyplot.subplots(figsize=(8.5, 2.8))
    lives = lives_of(results["ends"])
    for life in lives:
        times = [at for at, _, _ in life]
        lengths = [b - a for a, b in itertools.pairwise(times)]
        rates = [
            1 / statistics.median(lengths[max(n - WINDOW + 1, 0) : n + 1])
            for n in range(len(lengths))
        ]
        axes.plot(times[1:], rates, color=BLUE, linewidth=1.4)
    top = axes.get_ylim()[1]
    gaps = itertools.pairwise(lives)
    for number, ((before, after), choice) in enumerate(
        zip(gaps, results["choices"], strict=True)
    ):
        axes.axvspan(before[-1][0], after[0][0], color=RED, alpha=0.15, lw=0)
        middle = (before[-1][0] + after[0][0]) / 2
        height = top * (1.02 + 0.09 * (number % 2))  # they may be close
        axes.text(middle, height, choice, ha="center", color=RED)
        axes.axvline(after[0][0], color=RED, linewidth=0.8)
    axes.set_ylim(0, top)
    axes.set_xlim(0, lives[-1][-1][0])
    axes.set_xlabel("s")
    axes.set_ylabel("steps/s")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(PLOT, metadata={"Date": None}, transparent=True)


def lives_of(ends: list[list[float]]) -> list[list[list[float]]]:
    """Steps by the process that did them: each goes back, or was away."""
    lives = [[ends[0]]]
    for last, this in itertools.pairwise(ends):
        if this[1] <= last[1] or this[2] != last[2] or this[0] - last[0] > 2:
            lives.append([])
        lives[-1].append(this)
    return lives


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--worker", metavar="FILE")
    options = parser.parse_args()
    if options.worker:
        worker(options.worker)
        return
    if not options.draw:
        measure()
    draw()


if __name__ == "__main__":
    main()
