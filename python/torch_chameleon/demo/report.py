"""What the demo's runs came to: figures, a table and a JSON file."""

import json
import platform
from pathlib import Path
from typing import Any

import torch

from torch_chameleon import _C

Row = tuple[str, str]


def summarize(
    native: Any, unlimited: Any, limited: Any, for_loop: Any, k: float
) -> dict[str, Any]:
    """Picks the figures that the table, the picture and the JSON show.

    Args:
        native: Result of the run on the native device.
        unlimited: Of the run on chameleon without a limit.
        limited: Of the run within the budget.
        for_loop: Of the run with torch's CPU default, AdamW(foreach=False).
        k: Peak over budget.
    """
    stats = limited["stats"]
    runs = (native, unlimited, limited)
    return {
        "parameters": native["parameters"],
        "steps": len(native["losses"]),
        "k": k,
        "peak_bytes": unlimited["stats"]["peak_logical_bytes"],
        "for_loop_peak_bytes": for_loop["stats"]["peak_logical_bytes"],
        "hbm_budget_bytes": stats["hbm_budget"],
        "peak_resident_bytes": stats["peak_resident_bytes"],
        "peak_host_bytes": stats["peak_host_bytes"],
        "bytes_in_per_step": limited["bytes_in_per_step"],
        "bytes_out_per_step": limited["bytes_out_per_step"],
        "native_step_ns": native["step_ns"],
        "unlimited_step_ns": unlimited["step_ns"],
        "limited_step_ns": limited["step_ns"],
        "first_loss": native["losses"][0],
        "last_loss": native["losses"][-1],
        "losses_equal": _equal(runs, "loss_bits"),
        "states_equal": _equal(runs, "state_sha256"),
        "samples_equal": _equal(runs, "sample"),
        "sample": limited["sample"],
        "physical_device": limited["physical_device"],
        "machine": _machine(native["threads"]),
        "torch": torch.__version__,
    }


def _equal(runs: tuple[Any, ...], key: str) -> bool:
    return all(run[key] == runs[0][key] for run in runs)


def _machine(threads: int) -> str:
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    return f"{name}, {threads} threads"


def table(summary: dict[str, Any]) -> list[Row]:
    """The rows that are shown."""

    def size(key: str) -> str:
        return _C.format_bytes(summary[key])

    def time(key: str) -> str:
        return f"{summary[key] / 1e6:.0f} ms"

    def verdict(key: str) -> str:
        return "yes, every bit" if summary[key] else "NO"

    ratio = summary["limited_step_ns"] / summary["native_step_ns"]
    return [
        ("model", f"GPT, {summary['parameters'] / 1e6:.1f} M parameters"),
        ("steps", f"{summary['steps']}"),
        (
            "loss",
            f"{summary['first_loss']:.3f} -> {summary['last_loss']:.3f}",
        ),
        ("peak without a limit", size("peak_bytes")),
        ("  with torch's CPU default AdamW", size("for_loop_peak_bytes")),
        (f"budget (peak / {summary['k']:g})", size("hbm_budget_bytes")),
        ("peak resident", size("peak_resident_bytes")),
        ("peak on the host", size("peak_host_bytes")),
        ("moved in per step", size("bytes_in_per_step")),
        ("moved out per step", size("bytes_out_per_step")),
        ("time per step, native", time("native_step_ns")),
        ("time per step, unlimited", time("unlimited_step_ns")),
        (
            "time per step, within the budget",
            f"{time('limited_step_ns')} ({ratio:.2f} x native)",
        ),
        ("losses equal", verdict("losses_equal")),
        ("parameters, gradients, optimizer equal", verdict("states_equal")),
        ("generated text equal", "yes" if summary["samples_equal"] else "NO"),
    ]


def print_report(summary: dict[str, Any]) -> None:
    """Prints the table, by rich if it is there, and the generated text."""
    title = f"measured on {summary['physical_device']}: {summary['machine']}"
    rows = table(summary)
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ModuleNotFoundError:
        width = max(len(name) for name, _ in rows)
        print(f"\n{title}")
        for name, value in rows:
            print(f"  {name:<{width}}  {value}")
    else:
        grid = Table(title=title, show_header=False, title_justify="left")
        for name, value in rows:
            grid.add_row(Text(name), Text(value))
        print()
        Console().print(grid)
    print(f"\nGenerated:\n{summary['sample']}\n")


def write_json(
    path: Path, summary: dict[str, Any], runs: dict[str, Any]
) -> None:
    """Writes the summary and everything that was measured."""
    shown = json.dumps(summary, indent=1)  # the rest is for programs
    path.write_text(f'{{"summary": {shown},\n"runs": {json.dumps(runs)}}}\n')
