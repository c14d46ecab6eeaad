"""What `plan` says of several GPUs."""

import argparse
from typing import Any

from torch_chameleon import _C
from torch_chameleon._units import duration, size
from torch_chameleon.plan import machine

_GIGA = 1e9


def joined_by(options: argparse.Namespace) -> str:
    """What collectives go over, in words.

    Args:
        options: Of the command.
    """
    card = _C.gpu_profile(machine.with_network(options.gpu, options.network))
    rate = card["nvlink_bytes_per_s"] / _GIGA
    if rate:
        within = f"NVLink, {rate:.0f} GB/s each way"
    elif card["peer_access"]:
        within = "PCIe, from GPU to GPU"
    else:
        within = "PCIe by way of host memory, which swapping shares"
    if options.nodes == 1:
        return within
    network = card["network_bytes_per_s"] * 8 / _GIGA
    source = "the card's default" if options.network is None else "--network"
    between = f"{network:g} Gbit/s for each GPU ({source})"
    if options.gpus == options.nodes:
        return between
    return f"{within}; between machines {between}"


def where(figures: dict[str, Any]) -> str:
    """The card, and how many.

    Args:
        figures: Of `plan`.
    """
    gpus = figures.get("gpus", 1)
    if gpus == 1:
        return str(figures["gpu"])
    nodes = figures["nodes"]
    machines = "one machine" if nodes == 1 else f"{nodes} machines"
    return f"{gpus} x {figures['gpu']} in {machines}, each GPU"


def cluster(figures: dict[str, Any]) -> list[tuple[str, str]]:
    """Lines of the answer.

    Args:
        figures: Of `plan`.
    """
    if figures.get("gpus", 1) == 1:
        return []
    return [
        ("collective", _collectives(figures)),
        (
            "ranks",
            f"rank 0 of {figures['gpus']} ran, the others are taken to do the "
            f"same; joined by {figures['joined_by']}",
        ),
    ]


def _collectives(figures: dict[str, Any]) -> str:
    if not figures["collective_ns"]:
        return "none in a step"
    step_ns = figures.get("step_ns") or figures["in_memory_ns"]
    waits = figures["collective_wait_ns"]
    return (
        f"{duration(figures['collective_ns'])} a step, of which "
        f"{duration(waits)} are not hidden behind compute: "
        f"{waits / step_ns * 100:.0f} % of it"
    )


def fewer(figures: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The table of fewer GPUs.

    Args:
        figures: Of `plan`.
    """
    names = ["GPUs", "machines", "peak", "peak/budget", "step"]
    names += ["collectives wait", "GPU time"]
    return names, [
        [
            str(row["gpus"]),
            str(row["nodes"]),
            size(row["peak_bytes"]),
            f"{row['peak_bytes'] / row['budget_bytes']:.2f}",
            "does not fit"
            if row["step_ns"] is None
            else duration(row["step_ns"]),
            "-"
            if row["step_ns"] is None
            else f"{row['collective_wait_ns'] / row['step_ns'] * 100:.0f} %",
            "-"
            if row["step_ns"] is None
            else duration(row["step_ns"] * row["gpus"]),
        ]
        for row in figures["fewer"]
    ]
