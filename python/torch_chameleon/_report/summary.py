"""The few figures by which ranks are compared, and all ranks on one screen.

Each rank writes a file of its own; whoever reads them joins them. The order and
number of collectives are the program's, so that no rank asks another.
"""

import json
from collections.abc import Sequence
from typing import Any

from torch_chameleon import _ranks, _units
from torch_chameleon._report.figures import Figures

_FORMAT = 1
_KIND = "torch_chameleon rank"
_HEADINGS = (
    *("rank", "steps", "step", "for bytes", "for ranks", "in", "out"),
    *("run in", "run out", "peak", "budget"),
)


class SummaryError(ValueError):
    """Files that are not those of the ranks of one run."""


def summary_of(figures: Figures, index: int) -> dict[str, Any]:
    """What one rank writes.

    Args:
        figures: Of its run.
        index: Its device.

    Returns:
        Plain values. The step is the one that a page would be about.
    """
    rank, ranks = _ranks.place()
    stats = figures.stats
    step = figures.step or {}
    return {
        "kind": _KIND,
        "format": _FORMAT,
        "version": figures.version,
        "rank": rank,
        "ranks": ranks,
        "device": index,
        "physical_device": figures.physical_device,
        "steps": stats["steps"],
        "step_ns": figures.step_ns,
        "waited_ns": figures.waited_ns,
        "collective_wait_ns": step.get("collective_wait_ns", 0),
        "step_bytes_in": step.get("bytes_in", 0),
        "step_bytes_out": step.get("bytes_out", 0),
        "bytes_in": stats["bytes_in"],
        "bytes_out": stats["bytes_out"],
        "peak_logical_bytes": stats["peak_logical_bytes"],
        "peak_resident_bytes": stats["peak_resident_bytes"],
        "hbm_budget": stats["hbm_budget"],
    }


def read(paths: Sequence[str]) -> list[dict[str, Any]]:
    """Summaries of ranks, in their order.

    Args:
        paths: The ranks' files, in any order.

    Raises:
        SummaryError: They are not those of different ranks of one run.
        OSError: One cannot be read.
    """
    rows: dict[int, dict[str, Any]] = {}
    files: dict[int, str] = {}
    for path in paths:
        row = _read_one(path)
        rank = row["rank"]
        if rank in rows:
            raise SummaryError(
                f"{files[rank]} and {path} are both of rank {rank}: give the "
                "files of one run"
            )
        rows[rank], files[rank] = row, path
        first = next(iter(rows.values()))
        if row["ranks"] != first["ranks"]:
            raise SummaryError(
                f"{path} is of a run with {row['ranks']} ranks, "
                f"{files[first['rank']]} of one with {first['ranks']}: give "
                "the files of one run"
            )
    return [rows[rank] for rank in sorted(rows)]


def _read_one(path: str) -> dict[str, Any]:
    with open(path, encoding="utf-8", errors="replace") as file:
        try:
            row = json.load(file)
        except ValueError:
            row = None
    if not isinstance(row, dict) or row.get("kind") != _KIND:
        raise SummaryError(
            f"{path} is no summary of a rank, which "
            'torch_chameleon.report("run.json") writes'
        )
    if row["format"] != _FORMAT:
        raise SummaryError(
            f"{path} was written by torch_chameleon {row['version']}, in a "
            "format that this one does not read"
        )
    return row


def text_of(rows: Sequence[dict[str, Any]]) -> str:
    """A table of ranks, and what all of them come to.

    Args:
        rows: Of `read`, one at least.
    """
    lines = [_HEADINGS, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = [
        "  ".join(
            cell.rjust(width) for cell, width in zip(line, widths, strict=True)
        )
        for line in lines
    ]
    return "\n".join([*table, "", *_all_of(rows)])


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    moved = "step_bytes_in", "step_bytes_out", "bytes_in", "bytes_out"
    return (
        str(row["rank"]),
        str(row["steps"]),
        _units.duration(row["step_ns"]),
        _units.duration(row["waited_ns"]),
        _units.duration(row["collective_wait_ns"]),
        *(_units.decimal(row[name]) for name in moved),
        _units.size(row["peak_logical_bytes"]),
        _units.size(row["hbm_budget"]),
    )


def _all_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    slowest = max(rows, key=lambda row: row["step_ns"])
    largest = max(rows, key=lambda row: row["peak_logical_bytes"])
    counts = sorted({row["steps"] for row in rows})
    steps = "-".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    bytes_in = sum(row["bytes_in"] for row in rows)
    bytes_out = sum(row["bytes_out"] for row in rows)
    lines = [
        f"{len(rows)} of {rows[0]['ranks']} ranks, {steps} steps",
        f"slowest step: {_units.duration(slowest['step_ns'])}, of rank "
        f"{slowest['rank']}",
        f"moved by all: {_units.decimal(bytes_in)} in, "
        f"{_units.decimal(bytes_out)} out",
        f"largest peak: {_units.size(largest['peak_logical_bytes'])}, of rank "
        f"{largest['rank']}",
    ]
    if any(row["physical_device"] == "simulated" for row in rows):
        lines.append("times are modelled: the device is simulated")
    return lines
