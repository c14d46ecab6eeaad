"""One step under torch.profiler: who waits, and what runs at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import torch
from torch.profiler import ProfilerActivity, profile

Spans = Iterable[tuple[float, float]]  # from, to
SHOWN = 40  # calls of CUDA, by name: the longest
# The profiler takes a GPU's work for that of the backend that has a name.
ON_GPU = (
    torch.autograd.DeviceType.CUDA,
    torch.autograd.DeviceType.PrivateUse1,
)


def covered(spans: Spans) -> float:
    """How long at least one of them is going on."""
    total, end = 0.0, float("-inf")
    for first, last in sorted(spans):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total


def overlap(some: list, others: list) -> float:
    """How long one of each is going on."""
    return covered(some) + covered(others) - covered([*some, *others])


def kind_of(name: str) -> str:
    """What a span on the GPU is."""
    if "HtoD" in name:
        return "in"
    if "DtoH" in name:
        return "out"
    is_move = name.startswith(("Memcpy", "Memset"))
    return "inside" if is_move else "kernels"


def profiled(step: Callable[[], dict], device: str, on_gpu: bool) -> dict:
    """Runs a step under torch.profiler.

    Args:
        step: Runs it, and waits for the device.
        device: Whose; figures of chameleon's are added.
        on_gpu: Whether there is a GPU to look at; else there are calls only.

    Returns:
        How long kernels and copies ran, alone and at a time, in ms, and how
        often and how long CUDA was called, by name.
    """
    activities = [ProfilerActivity.CPU]
    if on_gpu:
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as found:
        row = step()
    spans: dict[str, list] = {
        kind: [] for kind in ("kernels", "in", "out", "inside")
    }
    calls: dict[str, list] = defaultdict(lambda: [0, 0.0])
    for event in found.profiler.kineto_results.events():
        name, begin = event.name(), event.start_ns() / 1e6
        ms = event.duration_ns() / 1e6
        if event.device_type() in ON_GPU:
            spans[kind_of(name)].append((begin, begin + ms))
        elif name.startswith("cu"):
            calls[name][0] += 1
            calls[name][1] += ms
    copies = [*spans["in"], *spans["out"]]
    longest = sorted(calls.items(), key=lambda each: -each[1][1])[:SHOWN]
    figures = {
        "step_ms": row["step_ms"],
        "busy_ms": {kind: covered(each) for kind, each in spans.items()},
        "copies_ms": covered(copies),
        "copies_beside_kernels_ms": overlap(copies, spans["kernels"]),
        "waits": sum(
            count for name, (count, _) in calls.items() if "Synchronize" in name
        ),
        "calls": {name: [count, ms] for name, (count, ms) in longest},
    }
    if device == "chameleon":
        from torch_chameleon import profiler

        last = profiler.last_step()
        for way in ("in", "out"):
            figures[f"{way}_gb"] = last[f"bytes_{way}"] / 1e9
    return figures
