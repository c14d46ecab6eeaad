"""Replays allocations of trainings: how small a card each allocator needs.

    python tests/benchmarks/fragmentation/run.py [TRACE ...]

Builds what it runs. Without names of traces results/fragmentation.json is
written, and results/fragmentation.md made of it; with some their figures are
printed. Everything is counted: two runs find the same.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

import emulated_cuda  # noqa: E402

from fragmentation import page  # noqa: E402
from fragmentation.allocators import (  # noqa: E402
    CHAMELEON,
    TORCH,
    Allocator,
    build_chameleon,
)
from fragmentation.events import TRACES, Trace, read  # noqa: E402

STEPS = 2000  # cards differ by the live peak over this
ROOMY = 16  # times the peak: nobody runs out


def smallest_card(allocator: Allocator, trace: Trace) -> dict:
    """The smallest card on which a trace runs, and what a step costs there.

    By bisection: it does not run on a card that is smaller by one part in
    STEPS of the live peak. Sizes are whole such parts above it.
    """

    def figures(parts: int) -> dict | None:
        card = trace.peak_bytes + trace.peak_bytes * parts // STEPS
        return allocator.figures(trace, card)

    too_small, enough = -1, 0
    found = figures(enough)
    while found is None:
        too_small, enough = enough, max(1, 2 * enough)
        found = figures(enough)
    while enough - too_small > 1:
        middle = (too_small + enough) // 2
        there = figures(middle)
        if there is None:
            too_small = middle
        else:
            enough, found = middle, there
    return {"lost": enough / STEPS, **found}


def measured(trace: Trace) -> dict:
    """All figures of a trace."""
    row: dict = {
        "ops": trace.ops,
        "steps": trace.steps,
        "peak_bytes": trace.peak_bytes,
    }
    for allocator in (*TORCH, CHAMELEON):
        row[allocator.name] = {
            "smallest": smallest_card(allocator, trace),
            "roomy": allocator.figures(trace, ROOMY * trace.peak_bytes),
        }
    ours = row[CHAMELEON.name]
    ours["at_peak"] = CHAMELEON.run(trace, trace.peak_bytes)
    if trace.steps == 1:  # the others are planned for minutes
        ours["at_half"] = CHAMELEON.run(trace, trace.peak_bytes // 2)
    return row


def main() -> None:
    """Measures all traces and writes the page, or prints some."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("traces", nargs="*", metavar="TRACE")
    names = parser.parse_args().traces
    for name in names:
        if name not in TRACES:
            parser.error(f"no trace {name!r}; there are {', '.join(TRACES)}")
    if not emulated_cuda.can_be_built():
        sys.exit(f"fragmentation/run.py {emulated_cuda.NEEDS}")
    build_chameleon()
    rows = {}
    for name in names or TRACES:
        start = time.monotonic()
        rows[name] = page.rounded(measured(read(TRACES[name])))
        print(name, f"{time.monotonic() - start:.0f} s", file=sys.stderr)
        if names:
            print(json.dumps(rows[name], indent=1))
    if not names:
        page.write(rows)


if __name__ == "__main__":
    main()
