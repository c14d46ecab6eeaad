"""One training, one way, one budget, measured: a process of its own.

    python point.py ARGUMENTS

ARGUMENTS are those of `measure` as JSON; the figures are the last line of what
it prints. A way that runs out of memory or cannot run says so in `error`.
"""

from __future__ import annotations

import gc
import json
import pathlib
import resource
import statistics
import sys
import tempfile
import time

import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "policy"), str(HERE.parents[1])]

from benchmark_trainings import TRAININGS  # noqa: E402
from ways import WAYS, UnavailableError  # noqa: E402

WARM_STEPS = 6  # plans are made in the second step and followed in the third
STEPS = 12


def limit(device: str, budget: int) -> None:
    """No way may have more device memory than that; 0: no limit.

    On "cuda" it is called when the model is made, since some ways move it to
    the host then: from the first step on the limit holds.
    """
    if device == "chameleon":
        import torch_chameleon

        # Native's peak has been divided, which is not ours to the byte.
        torch_chameleon.config.oversubscription = 8
        if budget:
            torch_chameleon.config.hbm_budget = budget
    elif device == "cuda" and budget:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, budget / total))


def peak_bytes(device: str) -> int:
    """The most device memory that was in use; 0: not known."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    if device == "chameleon":
        import torch_chameleon

        return torch_chameleon.swap_stats()["peak_resident_bytes"]
    return 0


def cuda_mallocs() -> int:
    """How often PyTorch's own allocator asked CUDA for memory so far."""
    return torch.cuda.memory_stats().get("num_device_alloc", 0)


def swapped(ms: float, mallocs_before: int) -> dict:
    """What chameleon adds: bytes, waits, and the bound of the last step."""
    import torch_chameleon
    from bound import Links, lower_bound_ns
    from yardsticks import read_cycle

    stats = torch_chameleon.swap_stats()
    last = torch_chameleon.profiler.last_step()
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "step.jsonl"
        torch_chameleon.profiler.export_trace(file)
        header = json.loads(file.read_text().splitlines()[0])
        links = Links(header["bw_in"], header["bw_out"], header["bw_both"])
        is_measured = torch_chameleon._C.physical_device() == "cuda"
        bound_ns = (
            lower_bound_ns(read_cycle(file), stats["hbm_budget"], links)
            if is_measured
            else 0
        )
    return {
        "logical_peak_bytes": stats["peak_logical_bytes"],
        "host_bytes": stats["peak_host_bytes"],
        "in_gb": stats["bytes_in"] / STEPS / 1e9,
        "out_gb": stats["bytes_out"] / STEPS / 1e9,
        "stall_share": last["stall_ns"] / max(1, last["duration_ns"]),
        "host_waits": stats["host_waits"] / STEPS,
        "commits": stats["commits"] / STEPS,
        "pageable_bytes": stats["pageable_bytes"],
        "foreign_bytes": stats["foreign_bytes"],
        "cuda_mallocs": (cuda_mallocs() - mallocs_before) / STEPS,
        # No more is ever reserved than the budget.
        "active/reserved": stats["peak_resident_bytes"] / stats["hbm_budget"],
        "compactions": stats["compactions"] / STEPS,
        "link_gb_s": [header[key] / 1e9 for key in ("bw_in", "bw_out")],
        "bound_ms": bound_ns / 1e6,
        "bound/ours": bound_ns / 1e6 / ms if bound_ns else None,
    }


def measure(
    training: str,
    way: str,
    budget: int = 0,
    device: str = "",
    small: bool = False,
) -> dict:
    """Trains some steps and times them.

    Args:
        training: A name of `trainings.TRAININGS`.
        way: A name of `ways.WAYS`.
        budget: Bytes of device memory; 0: all there is.
        device: Where the other ways run.
        small: A small model, for tests.

    Returns:
        Times in ms, memory in bytes, losses.
    """
    device = "chameleon" if way == "chameleon" else device
    if device == "chameleon":
        import torch_chameleon

        limit(device, budget)
    try:
        made = TRAININGS[training](device, small)
        step = WAYS[way](made)
        if device != "chameleon":
            limit(device, budget)
        times = []
        for number in range(WARM_STEPS + STEPS):
            if number == WARM_STEPS and device == "chameleon":
                torch.chameleon.synchronize()
                torch_chameleon.reset_swap_stats()
                mallocs = cuda_mallocs()
            start = time.perf_counter()
            step()
            if device == "chameleon":
                torch_chameleon.step()
            torch.accelerator.synchronize() if device != "cpu" else None
            times.append((time.perf_counter() - start) * 1e3)
    except UnavailableError as error:
        return {"error": f"not here: {error}"}
    except torch.OutOfMemoryError as error:
        return {"error": f"out of memory: {str(error).splitlines()[0]}"}
    last = sorted(times[WARM_STEPS:])
    ms = statistics.median(last)
    figures = {
        "ms": ms,
        "p99_ms": last[-1],
        "steps": len(last),
        "examples_per_s": made.batch / ms * 1e3,
        "peak_bytes": peak_bytes(device),
        "process_host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        << 10,
    }
    if device == "chameleon":
        figures |= swapped(ms, mallocs)
    return figures


if __name__ == "__main__":
    gc.disable()
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
