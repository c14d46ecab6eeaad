"""Times trainings within less memory, ours beside what users do today.

    python tests/benchmarks/training/run.py [--minutes M] [--ours]
        [--training T ...] [--k K ...] [--device cuda|cpu] [--small]
        [--results FILE]

Each point is a process of its own, of two and a half minutes at most. Points
that are in FILE are left out, so the run goes on where it stopped: after M
minutes no further point is begun, and the exit status is 3 while some are left.
`--ours` leaves the other ways out. Nothing here is modelled. FILE is
tests/benchmarks/results/<gpu>.json, and table.py makes a table of it.

k is the peak of the training as it is over the budget, which holds for every
way. `micro_batch` is the fewest parts that fit.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import platform
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1])]

import torch  # noqa: E402
from benchmark_trainings import TRAININGS  # noqa: E402
from child import figures  # noqa: E402

KS = (1.25, 2.0, 4.0)
WAYS = (
    *("chameleon", "checkpoint", "save_on_cpu", "micro_batch"),
    *("fsdp2_offload", "trl_offload", "torchao_offload"),
    *("deepspeed_zero2", "deepspeed_zero3"),
)
PARTS = (2, 4, 8, 16)
LEFT = 3  # exit status: points are left
POINT_S = 150.0  # on a GPU


def machine() -> dict:
    """What the figures are of."""
    row = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "commands": ["./ci/gpu build benchmarks", "./ci/gpu rivals"],
    }
    if torch.cuda.is_available():
        row["gpu"] = torch.cuda.get_device_name(0)
        row["driver"] = driver_version()
    else:
        row["gpu"] = "none"
    return row


def driver_version() -> str:
    """As nvidia-smi tells; "?" where there is none."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv"]
    if shutil.which(query[0]) is None:
        return "?"
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    return (done.stdout.splitlines() or ["?"])[-1]


def default_results() -> pathlib.Path:
    """A file named after the GPU."""
    name = machine()["gpu"].lower().replace(" ", "-")
    return HERE.parent / "results" / f"{name}.json"


class Benchmark:
    """Runs points until the time is up and keeps what they gave."""

    def __init__(self, file: pathlib.Path, device: str, small: bool) -> None:
        self.file, self.device, self.small = file, device, small
        self.rows: dict[str, dict] = {}
        if file.exists():
            self.rows = json.loads(file.read_text())["points"]

    def point(self, training: str, way: str, k: float, budget: int) -> dict:
        """A row, run now unless it is there."""
        key = f"{training} {way} {k:g}"
        if key not in self.rows:
            start = time.monotonic()
            row = self.measure(training, way, budget)
            self.rows[key] = {"budget_bytes": budget, **row}
            text = json.dumps({"machine": machine(), "points": self.rows})
            self.file.write_text(text.replace('}, "', '},\n"') + "\n")
            took = time.monotonic() - start
            print(key, row.get("ms", row.get("error")), f"{took:.0f} s")
        return self.rows[key]

    def measure(self, training: str, way: str, budget: int) -> dict:
        """The figures of one way; of `micro_batch`, the fewest parts."""
        names = (
            [f"micro_batch_{parts}" for parts in PARTS]
            if way == "micro_batch"
            else [way]
        )
        row: dict = {}
        end = time.monotonic() + POINT_S
        for name in names:
            arguments = {
                "training": training,
                "way": name,
                "budget": budget,
                "device": self.device,
                "small": self.small,
            }
            row = figures(
                HERE / "point.py",
                arguments,
                # `import torch` alone may bring chameleon otherwise.
                {"CHAMELEON_AUTOLOAD": "0"},
                limit_s=max(1.0, end - time.monotonic())
                if self.device == "cuda"
                else None,
            )
            if "out of memory" not in row.get("error", ""):
                return {**row, "way": name}
        return row

    def points(self, trainings: list[str], ks: list[float], ways: list[str]):
        """Runs all in turn; yields after each."""
        for training in trainings:
            roomy = self.point(training, "in_memory", 0, 0)
            yield
            ours = self.point(training, "chameleon", 0, 0)
            yield
            peak = roomy.get("peak_bytes") or ours.get("logical_peak_bytes", 0)
            if not peak or training == "tiny":  # it is there for its overhead
                continue
            for k in ks:
                for way in ways:
                    self.point(training, way, k, int(peak / k))
                    yield


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser()
    add = parser.add_argument
    add("--minutes", type=float, default=float("inf"))
    add("--training", nargs="+", default=list(TRAININGS), choices=TRAININGS)
    add("--ours", action="store_true")
    add("--k", nargs="+", type=float, default=list(KS))
    add("--device", default="cuda", choices=("cuda", "cpu"))
    add("--small", action="store_true")
    add("--results", type=pathlib.Path)
    options = parser.parse_args()
    benchmark = Benchmark(
        options.results or default_results(), options.device, options.small
    )
    end = time.monotonic() + 60 * options.minutes
    ways = ["chameleon"] if options.ours else list(WAYS)
    for _ in benchmark.points(options.training, options.k, ways):
        if time.monotonic() > end:
            return LEFT
    return 0


if __name__ == "__main__":
    sys.exit(main())
