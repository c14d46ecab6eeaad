#!/usr/bin/env python3
"""Counts the instructions that op calls cost, natively and on chameleon.

    python tests/benchmarks/op_instructions.py [--case NAME] [--functions N]
        [--write]

Prints for each case what chameleon costs over native, and where it goes by
stages of a call: of ops alone in a loop, and on average of an op in a sequence
of different ones that repeats, as training does; then what importing the
package adds to `import torch`. --write keeps the former in
results/op_instructions.json and makes results/op_instructions.md of it.

Runs itself under valgrind's callgrind with instrumentation off, and turns it
on around two loops of different length; the difference of their counts is the
cost of an op, free of start-up and loop set-up. Instructions repeat where times
do not. Needs valgrind with its headers, and a C compiler.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import functools
import gc
import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import marked_part

# Rounds of the two loops, before which as many run unseen as the profiler
# takes to know them, and to stop looking at each.
LOOPS = {"alone": (100, 600), "sequence": (10, 60), "step": (5, 25)}
WARM = {"alone": 10_000, "sequence": 200, "step": 100}
WARM_LONG = 2000  # of cases that are many ops, or none of the short way
PLANNING_SECONDS = 1  # in the background, of what was seen by then
SEQUENCE_OPS = 50
SEQUENCE = "sequence"  # an op of the sequence, on average
STEPS = ("forward", "training", "adamw_100")
DEVICES = ("cpu", "chameleon")
MANY_OPS = ("backward", "adamw")
IMPORTS = 15

RESULTS = pathlib.Path(__file__).parent / "results" / "op_instructions.json"
PAGE = RESULTS.with_suffix(".md")
MARKS = ("<!-- op_instructions.py writes from here -->", "<!-- to here -->")
LABELS = {
    "sequence": "`sequence`",
    "add": "`add`",
    "add_": "`add_`",
    "mul": "`mul` by a number",
    "mul_": "`mul_` by a number",
    "relu": "`relu`",
    "addmm": "`addmm`",
    "layer_norm": "`layer_norm`, with what backward needs",
    "foreach_add_": "`_foreach_add_` of 20",
    "all_reduce": "`all_reduce`, one rank, gloo",
    "backward": "`(x * w).sum().backward()`",
    "adamw": "`AdamW.step()`, foreach, 2 parameters",
    "foreach_add_100": "`_foreach_add_` of 100",
    "adamw_100": "`AdamW.step()`, foreach, 100 parameters",
    "forward": "forward of an 8-layer GPT, no gradients",
    "training": "its forward and backward",
}

REQUESTS = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_ZERO_STATS; CALLGRIND_START_INSTRUMENTATION; }
void end(const char* name) {
  CALLGRIND_STOP_INSTRUMENTATION;
  CALLGRIND_DUMP_STATS_AT(name);
}
"""

BEGIN, END = "memory::CallPins::begin(", "memory::CallPins::end("
ADOPT = "memory::CallMemory::adopt("


def direct(method: str) -> tuple[str, ...]:
    """Returns a method of each DirectCall: by the room it has for lists."""
    return tuple(
        f"kernels::DirectCall<{listed}ul>::{method}(" for listed in (0, 1024)
    )


# A stage is what runs in and below some functions, less what runs in and below
# others. Stages do not overlap, except that a kernel contains what it allocates
# and frees.
STAGES = {
    "operands": (
        (*direct("begin"), *direct("~DirectCall")),
        (BEGIN, END),
    ),
    "begin": ((BEGIN,), ()),
    "allocate": (("InKernelAllocator::allocate(",), ()),
    "adopt": (direct("finish"), ()),
    "end": ((END,), ()),
    "release": (("backend::release_block(",), ()),
    "general": (("kernels::call_native(",), ()),
}
# The profiler is inline in these: its lines are told by their folder.
PROFILER = "profiler/"
PROFILED = {"begin": (BEGIN,), "adopt": (ADOPT,)}
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
    many = [torch.ones(8, device=device) for _ in range(100)]
    leaf = torch.ones(8, device=device, requires_grad=True)
    norm = torch.nn.functional.layer_norm

    def backward() -> None:
        (leaf * a).sum().backward()

    def adam() -> None:
        adam_w.step()

    if not torch.distributed.is_initialized():  # of one rank, gloo's thread
        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
        )

    adam_w = torch.optim.AdamW([weight, offset], foreach=True)
    weight.grad, offset.grad = torch.ones_like(a), torch.ones_like(a)
    return {
        "add": lambda: torch.add(a, b),
        "add_": lambda: c.add_(b),
        "mul": lambda: torch.mul(a, 2.0),
        "mul_": lambda: c.mul_(1.0),
        "relu": lambda: torch.relu(a),
        "addmm": lambda: torch.addmm(bias, matrix, matrix),
        "layer_norm": lambda: norm(rows, (8,), weight, offset),
        "foreach_add_": lambda: torch._foreach_add_(many[:20], 1.0),
        "foreach_add_100": lambda: torch._foreach_add_(many, 1.0),
        "all_reduce": lambda: torch.distributed.all_reduce(c),
        "backward": backward,
        "adamw": adam,
    }


def make_steps(device: str) -> dict[str, Callable[[], object]]:
    """Returns the parts of a step of a small training, by name."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(
        32, 2, 64, dropout=0.0, batch_first=True, norm_first=True
    )
    model = torch.nn.TransformerEncoder(
        layer, 8, enable_nested_tensor=False
    ).to(device)
    data = torch.ones(2, 8, 32, device=device)
    weights = [torch.ones(8, device=device) for _ in range(100)]
    for weight in weights:
        weight.requires_grad_().grad = torch.ones_like(weight)
    adam_w = torch.optim.AdamW(weights, foreach=True)

    def forward() -> None:
        with torch.no_grad():
            model(data)

    def training() -> None:
        model(data).sum().backward()
        model.zero_grad()

    return {
        "forward": forward,
        "training": training,
        "adamw_100": lambda: adam_w.step(),
    }


def make_sequence(device: str) -> Callable[[], object]:
    """Returns a round of different ops on different tensors."""
    import torch

    tensors = [torch.ones(8, device=device) for _ in range(SEQUENCE_OPS + 1)]
    kinds = (torch.add, torch.mul, torch.sub, torch.maximum, torch.div)

    def run() -> None:
        for i in range(SEQUENCE_OPS):
            kinds[i % len(kinds)](tensors[i], tensors[i + 1])

    return run


def measured(library: str, only: str | None) -> None:
    """Runs the loops; called inside valgrind."""
    import torch
    import torch_chameleon  # noqa: F401

    requests = ctypes.CDLL(library)
    libc = ctypes.CDLL(None)
    torch.set_num_threads(1)
    gc.disable()

    def loop(run: Callable[[], object], kind: str, name: str) -> None:
        many = kind == "alone" and name.startswith(MANY_OPS)
        for _ in range(WARM_LONG if many else WARM[kind]):
            run()
        time.sleep(PLANNING_SECONDS)
        for count in LOOPS[kind]:
            libc.malloc_trim(0)  # or one loop may tidy up for all before it
            requests.begin()
            for _ in range(count):
                run()
            requests.end(f"{name}/{kind}/{count}".encode())

    for device in DEVICES:
        loop(make_sequence(device), "sequence", f"{SEQUENCE}/{device}")
        for name, run in make_cases(device).items():
            if only not in (None, name):
                continue
            loop(run, "alone", f"{name}/{device}")
        for name, run in make_steps(device).items():
            if only not in (None, name):
                continue
            loop(run, "step", f"{name}/{device}")


def annotate(path: pathlib.Path, *arguments: str) -> list[str]:
    """Returns callgrind_annotate's table."""
    return subprocess.run(
        ["callgrind_annotate", "--auto=no", *arguments, path],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()


def rows(path: pathlib.Path, *arguments: str) -> Iterator[tuple[str, str, int]]:
    """Yields file, function and instructions."""
    for line in annotate(path, "--threshold=100", *arguments):
        found = re.match(r"\s*([\d,]+) \(.{1,7}%\)\s+(\S*?):(.*)$", line)
        if found and "'" not in found[3].split("[")[0]:
            function = found[3].split(" [")[0]
            yield found[2], function, int(found[1].replace(",", ""))


class Profile:
    """One loop's counts, whole and by stage."""

    def __init__(self, path: pathlib.Path):
        """Reads callgrind's dump."""
        self.path = path
        text = path.read_text(errors="replace")
        found = re.search(r"^totals: (\d+)", text, re.M)
        self.total = int(found[1]) if found else 0

    @functools.cached_property
    def inclusive(self) -> dict[str, int]:
        """Returns what each function costs with all it calls."""
        costs: dict[str, int] = collections.Counter()
        for _, function, cost in rows(self.path, "--inclusive=yes"):
            # What is inlined from another file has a row of its own.
            costs[function] = max(costs[function], cost)
        return costs

    @functools.cached_property
    def profiler(self) -> dict[str, int]:
        """Returns what each function costs in the profiler's lines."""
        costs: dict[str, int] = collections.Counter()
        for file, function, cost in rows(self.path):
            if PROFILER in file and "chameleon::" in function:
                costs[function] += cost
        return costs


def cost_of(costs: dict[str, int], functions: tuple[str, ...]) -> int:
    """Returns the sum over functions with these names."""
    return sum(
        cost
        for name, cost in costs.items()
        if any(function in name for function in functions)
    )


Figures = dict[str, float]


def per_round(profiles: dict[str, Profile], loop: str) -> Figures:
    """Returns a round's instructions, and those of each stage."""
    shorter, longer = LOOPS[loop.split("/")[2]]
    short, long = (profiles[f"{loop}/{n}"] for n in (shorter, longer))
    rounds = longer - shorter

    def cost(functions: tuple[str, ...], kind: str = "inclusive") -> float:
        above, below = (getattr(run, kind) for run in (long, short))
        return (cost_of(above, functions) - cost_of(below, functions)) / rounds

    figures = {
        stage: cost(inside) - cost(less)
        for stage, (inside, less) in STAGES.items()
    }
    for stage, functions in PROFILED.items():
        figures[stage] -= cost(functions, "profiler")
    figures["profiler"] = cost(("",), "profiler")
    figures["native memory"] = cost(NATIVE_MEMORY)
    return {"all": (long.total - short.total) / rounds, **figures}


def per_op(profiles: dict[str, Profile], case: str, kind: str) -> Figures:
    """Returns what one op costs, natively and over native, and its stages."""
    native, ours = (
        per_round(profiles, f"{case}/{device}/{kind}") for device in DEVICES
    )
    if case == SEQUENCE:  # the average of its ops
        for figures in (native, ours):
            for key in figures:
                figures[key] /= SEQUENCE_OPS
    saved = ours["native memory"] - native["native memory"]
    extra = ours["all"] - native["all"]
    stages = {stage: ours[stage] for stage in (*STAGES, "profiler")}
    return {
        "native": native["all"],
        "extra": extra,
        **stages,
        "saved": saved,
        "rest": extra - saved - sum(stages.values()),
    }


def kind_of(case: str) -> str:
    """Returns which pair of loops a case runs in."""
    if case in STEPS:
        return "step"
    return "sequence" if case == SEQUENCE else "alone"


def report(profiles: dict[str, Profile]) -> None:
    """Prints a row for each case, and one for the sequence."""
    cases = list(dict.fromkeys(name.split("/")[0] for name in profiles))
    cases.sort(key=lambda case: case == SEQUENCE)
    for number, case in enumerate(cases):
        kind = kind_of(case)
        figures = per_op(profiles, case, kind)
        if number == 0:
            print(f"{'':13}" + "".join(f"{name:>10}" for name in figures))
        row = "".join(f"{each:10.0f}" for each in figures.values())
        print(f"{case:13}{row}")


def kept() -> dict[str, dict[str, int]]:
    """What was measured last, by case."""
    figures: dict[str, dict[str, int]] = json.loads(RESULTS.read_text())
    return figures


def markdown(figures: dict[str, dict[str, int]]) -> str:
    """The table of the page. An empty cell: nothing."""
    names = ["native", "extra", *STAGES, "profiler", "saved", "rest"]
    lines = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for case, label in LABELS.items():
        cells = [
            f"{figures[case][name]:,}" if figures[case].get(name) else ""
            for name in names
        ]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write(profiles: dict[str, Profile]) -> None:
    """Keeps the figures of these cases, and makes the page."""
    figures = kept()
    for case in dict.fromkeys(name.split("/")[0] for name in profiles):
        kind = kind_of(case)
        found = per_op(profiles, case, kind)
        figures[case] = {name: round(each) for name, each in found.items()}
    RESULTS.write_text(json.dumps(figures, indent=1) + "\n")
    marked_part.put(f"\n\n{markdown(figures)}\n\n", PAGE, *MARKS)


def profiles_of(
    script: str, root: pathlib.Path, *arguments: str
) -> dict[str, Profile]:
    """Returns by name what `script --inside LIBRARY` counts in callgrind."""
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
            # Or a thread of ours may stand still, and hold its lock all along.
            "--fair-sched=yes",
            "--instr-atstart=no",
            f"--callgrind-out-file={root}/out",
            sys.executable,
            script,
            "--inside",
            str(library),
            *arguments,
        ],
        check=True,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    profiles = {}
    for path in sorted(root.glob("out.*"), key=lambda p: int(p.suffix[1:])):
        head = path.read_text(errors="replace")[:4096]
        trigger = re.search(r"Trigger: Client Request: (\S+)", head)
        if trigger:
            profiles[trigger[1]] = Profile(path)
    return profiles


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
    parser.add_argument("--write", action="store_true", help="keep figures")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        measured(options.inside, options.case)
        return
    with tempfile.TemporaryDirectory() as temporary:
        root = pathlib.Path(options.keep or temporary)
        case = ("--case", options.case) if options.case else ()
        profiles = profiles_of(__file__, root, *case)
        report(profiles)
        if options.write:
            write(profiles)
        for name, profile in profiles.items():
            if options.functions and "chameleon" in name:
                print(f"\n{name}")
                for line in annotate(profile.path)[: options.functions + 25]:
                    print(line[:160])
    added = import_milliseconds()
    print(f"\nimport torch_chameleon adds {added:.0f} ms to import torch")


if __name__ == "__main__":
    main()
