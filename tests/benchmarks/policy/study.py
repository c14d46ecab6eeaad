"""The study's traces, their links, and a tool's figures on one of them."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

from bound import Links, Step

TRACES = Path(__file__).parent / "traces"
LINKS = Links(bw_in=55e9, bw_out=55e9, bw_both=90e9)


def read_step(trace: str) -> Step:
    """The step of a trace, for its bounds."""
    return Step.read(TRACES / f"{trace}.jsonl.gz")


def figures(
    tool: str, trace: str, k: float, arguments: list[str]
) -> dict[str, float]:
    """Runs the tool on one trace."""
    text = gzip.decompress((TRACES / f"{trace}.jsonl.gz").read_bytes())
    result = subprocess.run(
        [tool, "--k", str(k), *arguments],
        input=text,
        capture_output=True,
        check=False,
    )
    if result.returncode != 0:
        sys.exit(result.stderr.decode())
    return json.loads(result.stdout)


def print_row(cells: list[str]) -> None:
    """Prints a row of a table."""
    print("| " + " | ".join(cells) + " |", flush=True)
