"""What chameleon says of the steps that were timed: bytes, waits, room."""

from __future__ import annotations

import gzip
import json
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Sequence

from profiled import covered, overlap

# Of each step: how its time splits up.
SPLIT = ("compute", "stall", "other")


def split() -> dict[str, float]:
    """How the last step's time splits up, in ms."""
    from torch_chameleon import profiler

    last = profiler.last_step()
    return {f"{part}_ms": last[f"{part}_ns"] / 1e6 for part in SPLIT}


def cuda_mallocs() -> int:
    """How often PyTorch's own allocator asked CUDA for memory so far."""
    import torch

    return torch.cuda.memory_stats().get("num_device_alloc", 0)


def swapped(rows: Sequence[dict], mallocs: int) -> dict:
    """Counters, a step, since they were reset.

    Args:
        rows: Steps, with their `split` where that was measured.
        mallocs: PyTorch's own calls for device memory meanwhile.
    """
    import torch_chameleon

    stats = torch_chameleon.swap_stats()
    last = torch_chameleon.profiler.last_step()
    steps = len(rows)
    splits = [row for row in rows if "stall_ms" in row] or [split()]
    whole = sum(row[f"{part}_ms"] for row in splits for part in SPLIT)
    plan = last["plan"] or {}
    return {
        "peak_bytes": stats["peak_resident_bytes"],
        "logical_peak_bytes": stats["peak_logical_bytes"],
        "host_bytes": stats["peak_host_bytes"],
        "held_host_bytes": stats["host_reserved_bytes"],
        "in_gb": stats["bytes_in"] / steps / 1e9,
        "out_gb": stats["bytes_out"] / steps / 1e9,
        **{
            f"{part}_ms": statistics.median(row[f"{part}_ms"] for row in splits)
            for part in SPLIT
        },
        "stall_share": sum(row["stall_ms"] for row in splits) / max(1, whole),
        "rerun_ms": stats["rerun_ns"] / steps / 1e6,
        "ops": last["ops"],
        "plan": {key: plan[key] for key in plan if key != "layers"},
        **{
            key: stats[key] / steps
            for key in ("host_waits", "commits", "compactions", "rerun_ops")
        },
        "cuda_mallocs": mallocs / steps,
        **{
            key: stats[key]
            for key in ("pageable_bytes", "foreign_bytes", "pinning_refusals")
        },
    }


def traced(path: str) -> dict:
    """Writes the last step's trace, for its bound; the link that it tells."""
    from torch_chameleon import profiler

    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "step.jsonl"
        profiler.export_trace(file)
        text = file.read_bytes()
    pathlib.Path(path).write_bytes(gzip.compress(text))
    header = json.loads(text.splitlines()[0])
    return {"link_gb_s": [header[key] / 1e9 for key in ("bw_in", "bw_out")]}


def link_busy(step: Callable[[], dict]) -> dict:
    """Runs one more step, every copy timed: when the link was used.

    Returns:
        How long bytes came in, went out, and did both at a time, in ms.
    """
    from torch_chameleon import profiler

    profiler.record_timeline()
    row = step()
    profiler.record_timeline(False)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "step.json"
        profiler.export_timeline(file)
        events = json.loads(file.read_text())["traceEvents"]
    spans: dict[str, list] = {"in": [], "out": []}
    for event in events:
        if event["ph"] == "X" and event["name"] in spans:
            begin, ms = event["ts"] / 1e3, event["dur"] / 1e3
            spans[event["name"]].append((begin, begin + ms))
    return {
        "step_ms": row["step_ms"],
        **{f"{way}_ms": covered(each) for way, each in spans.items()},
        "both_ms": overlap(spans["in"], spans["out"]),
    }
