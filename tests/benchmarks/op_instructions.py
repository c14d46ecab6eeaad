#!/usr/bin/env python3
"""Counts the instructions that op calls cost, natively and on chameleon.

    python tests/benchmarks/op_instructions.py [--case NAME] [--functions N]

Prints for each case what chameleon costs over native, and where it goes by
stages of a call; then what importing the package adds to `import torch`.

Runs itself under valgrind's callgrind with instrumentation off, and turns it
on around two loops of different length; the difference of their counts is the
cost of an op, free of start-up and loop set-up. Instructions repeat where times
do not. Needs valgrind with its headers, and a C compiler.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable

SHORT, LONG = 100, 600
DEVICES = ("cpu", "chameleon")
IMPORTS = 7

REQUESTS = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_ZERO_STATS; CALLGRIND_START_INSTRUMENTATION; }
void end(const char* name) {
  CALLGRIND_STOP_INSTRUMENTATION;
  CALLGRIND_DUMP_STATS_AT(name);
}
"""

# A stage is what runs in and below these functions; stages do not overlap,
# except that a kernel contains what it allocates and frees.
STAGES = {
    "collect": ("kernels::DirectCall::add(",),
    "begin": ("memory::PagerImpl::begin(",),
    "twins": ("kernels::TwinStack::push(", "kernels::TwinStack::popTo("),
    "allocate": ("InKernelAllocator::allocate(",),
    "adopt": ("kernels::DirectCall::finish(",),
    "end": ("memory::PagerImpl::end(",),
    "release": ("backend::release_block(",),
    "general": ("kernels::call_native(",),
}
NATIVE_MEMORY = (
    "c10::DefaultCPUAllocator::allocate(",
    "c10::DefaultCPUAllocator::ReportAndDelete(",
)


def make_cases(device: str) -> dict[str, Callable[[], object]]:
    """Returns what is measured, by name."""
    import torch

    a, b = torch.ones(8, device=device), torch.ones(8, device=device)
    c = torch.ones(8, device=device)
    matrix = torch.ones(8, 8, device=device)
    bias = torch.ones(8, device=device)
    rows = torch.ones(4, 8, device=device, requires_grad=True)
    weight = torch.ones(8, device=device, requires_grad=True)
    offset = torch.ones(8, device=device, requires_grad=True)
    many = [torch.ones(8, device=device) for _ in range(20)]
    leaf = torch.ones(8, device=device, requires_grad=True)
    norm = torch.nn.functional.layer_norm

    def backward() -> None:
        (leaf * a).sum().backward()

    def adam() -> None:
        adam_w.step()

    adam_w = torch.optim.AdamW([weight, offset], foreach=True)
    weight.grad, offset.grad = torch.ones_like(a), torch.ones_like(a)
    return {
        "add": lambda: torch.add(a, b),
        "add_": lambda: c.add_(b),
        "relu": lambda: torch.relu(a),
        "addmm": lambda: torch.addmm(bias, matrix, matrix),
        "layer_norm": lambda: norm(rows, (8,), weight, offset),
        "foreach_add_": lambda: torch._foreach_add_(many, 1.0),
        "backward": backward,
        "adamw": adam,
    }


def measured(library: str, only: str | None) -> None:
    """Runs the loops; called inside valgrind."""
    import torch
    import torch_chameleon  # noqa: F401

    requests = ctypes.CDLL(library)
    torch.set_num_threads(1)
    for device in DEVICES:
        for name, run in make_cases(device).items():
            if only not in (None, name):
                continue
            for length, count in (
                ("warm", 50),
                ("short", SHORT),
                ("long", LONG),
            ):
                requests.begin()
                for _ in range(count):
                    run()
                requests.end(f"{name}/{device}/{length}".encode())


def annotate(path: pathlib.Path, *arguments: str) -> list[str]:
    """Returns callgrind_annotate's table."""
    return subprocess.run(
        ["callgrind_annotate", "--auto=no", *arguments, path],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()


class Profile:
    """One loop's counts, whole and by stage."""

    def __init__(self, path: pathlib.Path):
        """Reads callgrind's dump."""
        self.path = path
        text = path.read_text(errors="replace")
        found = re.search(r"^totals: (\d+)", text, re.M)
        self.total = int(found[1]) if found else 0

    def inclusive(self) -> dict[str, int]:
        """Returns what each function costs with all it calls."""
        costs: dict[str, int] = collections.Counter()
        for line in annotate(self.path, "--inclusive=yes", "--threshold=100"):
            found = re.match(r"\s*([\d,]+) \(.{1,7}%\)\s+\S*?:(.*)$", line)
            if found and "'" not in found[2].split("[")[0]:
                # What is inlined from another file has a row of its own.
                cost = int(found[1].replace(",", ""))
                costs[found[2]] = max(costs[found[2]], cost)
        return costs


def cost_of(costs: dict[str, int], functions: tuple[str, ...]) -> int:
    """Returns the sum over functions with these names."""
    return sum(
        cost
        for name, cost in costs.items()
        if any(function in name for function in functions)
    )


def per_op(
    profiles: dict[str, Profile], case: str, device: str
) -> tuple[float, dict[str, float]]:
    """Returns an op's instructions, and those of each stage."""
    runs = [profiles[f"{case}/{device}/{n}"] for n in ("short", "long")]
    short, long = (run.inclusive() for run in runs)
    named = {**STAGES, "native memory": NATIVE_MEMORY}
    stages = {
        stage: (cost_of(long, names) - cost_of(short, names)) / (LONG - SHORT)
        for stage, names in named.items()
    }
    return (runs[1].total - runs[0].total) / (LONG - SHORT), stages


def report(profiles: dict[str, Profile]) -> None:
    """Prints a row for each case."""
    cases = list(dict.fromkeys(name.split("/")[0] for name in profiles))
    columns = ["native", "chameleon", "extra", *STAGES, "saved", "rest"]
    print(f"{'':13}" + "".join(f"{name:>10}" for name in columns))
    for case in cases:
        native, native_stages = per_op(profiles, case, "cpu")
        ours, stages = per_op(profiles, case, "chameleon")
        saved = stages.pop("native memory") - native_stages["native memory"]
        extra = ours - native
        rest = extra - saved - sum(stages.values())
        figures = [native, ours, extra, *stages.values(), saved, rest]
        print(f"{case:13}" + "".join(f"{each:10.0f}" for each in figures))


def import_milliseconds() -> float:
    """Returns what our import adds to torch's, in CPU time; paired runs."""
    added = []
    for _ in range(IMPORTS):
        seconds = []
        for code in ("import torch", "import torch, torch_chameleon"):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", code], check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds.append(
                after.ru_utime
                + after.ru_stime
                - before.ru_utime
                - before.ru_stime
            )
        added.append(seconds[1] - seconds[0])
    return 1e3 * statistics.median(added)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", help="one case only")
    parser.add_argument(
        "--functions",
        type=int,
        default=0,
        help="also list the N costliest functions of each case",
    )
    parser.add_argument("--keep", help="keep callgrind's files in this folder")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        measured(options.inside, options.case)
        return
    with tempfile.TemporaryDirectory() as temporary:
        root = pathlib.Path(options.keep or temporary)
        (root / "requests.c").write_text(REQUESTS)
        library = root / "requests.so"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-o", library, root / "requests.c"],
            check=True,
        )
        subprocess.run(
            [
                "valgrind",
                "--tool=callgrind",
                "--instr-atstart=no",
                f"--callgrind-out-file={root}/out",
                sys.executable,
                __file__,
                "--inside",
                str(library),
                *(["--case", options.case] if options.case else []),
            ],
            check=True,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        profiles = {}
        for path in sorted(root.glob("out.*"), key=lambda p: int(p.suffix[1:])):
            head = path.read_text(errors="replace")[:4096]
            trigger = re.search(r"Trigger: Client Request: (\S+)", head)
            if trigger and not trigger[1].endswith("/warm"):
                profiles[trigger[1]] = Profile(path)
        report(profiles)
        for name, profile in profiles.items():
            if options.functions and name.endswith("chameleon/long"):
                print(f"\n{name}")
                for line in annotate(profile.path)[: options.functions + 25]:
                    print(line[:160])
    added = import_milliseconds()
    print(f"\nimport torch_chameleon adds {added:.0f} ms to import torch")


if __name__ == "__main__":
    main()
