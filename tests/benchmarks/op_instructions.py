#!/usr/bin/env python3
"""Counts the instructions that one op call costs, natively and on chameleon.

    python tests/benchmarks/op_instructions.py [--functions N]

Runs itself under valgrind's callgrind with instrumentation off, and turns it
on around two loops of different length; the difference of their counts is the
cost of an op, free of start-up and loop set-up. Instructions repeat where times
do not. Needs valgrind with its headers, and a C compiler.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SHORT, LONG = 200, 1200
DEVICES = ("cpu", "chameleon")

REQUESTS = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_ZERO_STATS; CALLGRIND_START_INSTRUMENTATION; }
void end(const char* name) {
  CALLGRIND_STOP_INSTRUMENTATION;
  CALLGRIND_DUMP_STATS_AT(name);
}
"""


def measured(library: str) -> None:
    """Runs the loops; called inside valgrind."""
    import torch
    import torch_chameleon  # noqa: F401

    requests = ctypes.CDLL(library)
    torch.set_num_threads(1)
    for device in DEVICES:
        a = torch.ones(8, device=device)
        b = torch.ones(8, device=device)
        add = torch.add
        for name, warm in (("warm", 50), ("short", SHORT), ("long", LONG)):
            requests.begin()
            for _ in range(warm):
                add(a, b)
            requests.end(f"{device}-{name}".encode())


def main() -> None:
    """Prints one row a device and the extra cost."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--functions",
        type=int,
        default=0,
        help="list the N costliest functions",
    )
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        measured(options.inside)
        return
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
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
            ],
            check=True,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        counts: dict[str, int] = {}
        files: dict[str, pathlib.Path] = {}
        for path in root.glob("out*"):
            text = path.read_text(errors="replace")
            trigger = re.search(r"Trigger: Client Request: (\S+)", text)
            total = re.search(r"^totals: (\d+)", text, re.M)
            if trigger and total:
                counts[trigger[1]] = int(total[1])
                files[trigger[1]] = path
        per_op = {
            device: (counts[f"{device}-long"] - counts[f"{device}-short"])
            / (LONG - SHORT)
            for device in DEVICES
        }
        for device, cost in per_op.items():
            print(f"{device:10} {cost:8.0f} instructions an op (torch.add)")
        print(f"{'extra':10} {per_op['chameleon'] - per_op['cpu']:8.0f}")
        if options.functions:
            table = subprocess.run(
                ["callgrind_annotate", files["chameleon-long"]],
                check=True,
                capture_output=True,
                text=True,
            ).stdout.splitlines()
            print(
                "\n".join(
                    line[:160] for line in table[: options.functions + 25]
                )
            )


if __name__ == "__main__":
    main()
