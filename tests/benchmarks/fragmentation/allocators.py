"""PyTorch's allocator and this device, each on a card of some size.

Each answers the same two questions about a trace: whether its steps run within
so many bytes, and what a steady step costs there.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pathlib
import subprocess
from typing import Protocol

import emulated_cuda
import torch

from fragmentation.events import ROUNDED, Trace

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
BUILD = ROOT / "build" / "core"


class Allocator(Protocol):
    """Who gives out a card's memory."""

    name: str

    def figures(self, trace: Trace, card_bytes: int) -> dict | None:
        """What steady steps cost, a step; None: they do not run."""


class Torch:
    """PyTorch's CUDACachingAllocator, on a card without memory (card.h)."""

    def __init__(self, name: str, options: str = "") -> None:
        self.name = name
        # It has other names too.
        others = {k: v for k, v in os.environ.items() if "ALLOC_CONF" not in k}
        self._environment = {**others, "PYTORCH_ALLOC_CONF": options}

    def figures(self, trace: Trace, card_bytes: int) -> dict | None:
        """Runs where the allocator does not report that it is out of memory."""
        done = subprocess.run(
            [_torch_replay(), str(card_bytes), str(trace.steady_steps)],
            input=trace.events,
            env=self._environment,
            capture_output=True,
            text=True,
            check=True,
        )
        counts = json.loads(done.stdout)
        if not counts:
            return None
        steps = counts["steps"]
        sizes = ("allocated_bytes", "reserved_bytes")
        calls = {
            name: count / steps
            for name, count in counts.items()
            if name not in (*sizes, "steps", "retries")
        }
        return {
            "driver_calls": sum(calls.values()),
            "retries": counts["retries"] / steps,
            "reserved": counts["reserved_bytes"] / counts["allocated_bytes"],
            "calls": {name: count for name, count in calls.items() if count},
        }


class Chameleon:
    """The pager as it ships, on the simulated GPU (hbm_use.h)."""

    name = "chameleon"

    def run(self, trace: Trace, budget_bytes: int) -> dict | None:
        """The same, however much goes over the link."""
        done = subprocess.run(
            [
                BUILD / "tests/benchmarks/fragmentation/replay_within",
                str(budget_bytes // ROUNDED * ROUNDED),
            ],
            input=trace.text,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 1:  # the pager says that an op does not fit
            return None
        done.check_returncode()
        use = json.loads(done.stdout)
        return {
            "driver_calls": use["commits"] / use["steps"],
            "link_bytes": use["link_bytes"] / use["steps"],
            "moved_bytes": use["moved_bytes"] / use["steps"],
            "reserved": use["mapped_bytes"] / use["resident_bytes"],
        }

    def figures(self, trace: Trace, card_bytes: int) -> dict | None:
        """Runs where steady steps move nothing over the link."""
        found = self.run(trace, card_bytes)
        return None if found is None or found["link_bytes"] else found


TORCH = (
    Torch("default"),
    Torch("expandable", "expandable_segments:True"),
)
CHAMELEON = Chameleon()


def build_chameleon() -> None:
    """Builds what `Chameleon` runs, in the folder of the core's tests."""
    subprocess.run(
        [
            *("cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja"),
            *("-DCHAMELEON_BUILD_TORCH=OFF", "-DCHAMELEON_BUILD_TESTS=ON"),
        ],
        stdout=subprocess.DEVNULL,
        check=True,
    )
    subprocess.run(
        ["cmake", "--build", BUILD, "--target", "replay_within"],
        stdout=subprocess.DEVNULL,
        check=True,
    )


@functools.cache
def _torch_replay() -> pathlib.Path:
    """The program that has PyTorch's allocator, built if it is not there."""
    library = pathlib.Path(torch.__file__).parent
    headers = emulated_cuda.cuda_headers()
    sources = [HERE / name for name in ("card.cpp", "torch_allocator.cpp")]
    command = ["c++", "-std=c++20", "-O1", *map(str, sources)]
    command += [f"-I{ROOT}", "-isystem", f"{library}/include"]
    command += ["-isystem", headers, f"-L{library}/lib", "-lc10_cuda", "-lc10"]
    # What libc10_cuda asks of CUDA's runtime it finds in the program first.
    command += ["-rdynamic", f"-Wl,-rpath,{library}/lib"]
    command += ["-Wl,--allow-shlib-undefined", "-o"]
    digest = hashlib.sha256(f"{torch.__version__} {command}".encode())
    for source in (*sources, HERE / "card.h"):
        digest.update(source.read_bytes())
    folder = ROOT / "build" / "fragmentation"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / digest.hexdigest()[:16]
    if not program.exists():
        made = program.with_suffix(f".{os.getpid()}")
        subprocess.run([*command, made], check=True)
        made.rename(program)
    return program
