"""One training, one way, one budget, measured: a process of its own.

    python training_point.py ARGUMENTS

ARGUMENTS are those of `measure` as JSON. Each step's time is a JSON line of its
own, flushed, so that what ends the process costs what comes after it; then
follows {"point": the figures}. A way that runs out of memory or cannot run says
so in their `error`. No step is marked: the code is the same on every device.
"""

from __future__ import annotations

import gc
import gzip
import json
import pathlib
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator

import places
import torch
from benchmark_trainings import TRAININGS
from profiled import profiled
from ways import WAYS, UnavailableError

# Plans are made in the second step and followed in the third; with a budget
# others are tried after it, and then there are as many warm steps as that
# takes, up to MOST_WARM or WARM_SHARE of the time.
WARM_STEPS = 5
MOST_WARM = 40
WARM_SHARE = 0.5
STEPS = 6


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
    elif device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        total = torch.cuda.get_device_properties(0).total_memory
        share = min(1.0, budget / total) if budget else 1.0
        torch.cuda.set_per_process_memory_fraction(share)


def used_host_bytes() -> int:
    """What is in use of this machine's memory, by all processes."""
    with open("/proc/meminfo") as file:
        rows = dict(line.split(":", 1) for line in file)
    total, free = (rows[key].split()[0] for key in ("MemTotal", "MemAvailable"))
    return (int(total) - int(free)) << 10


def synchronize(device: str) -> None:
    """Waits until the device has done all."""
    if device != "cpu":
        getattr(torch, device).synchronize()


class Loop:
    """Steps of a training, timed."""

    def __init__(self, step, device: str, is_modelled: bool) -> None:
        self._step, self._device = step, device
        self._is_modelled = is_modelled

    def __call__(self) -> dict:
        """One step: its time, until it was submitted too, and its loss."""
        start = time.perf_counter()
        loss = self._step()
        submitted = time.perf_counter()
        synchronize(self._device)
        row = {
            "step_ms": (time.perf_counter() - start) * 1e3,
            "host_ms": (submitted - start) * 1e3,
        }
        if self._is_modelled:
            from torch_chameleon import profiler

            return {"step_ms": profiler.last_step()["duration_ns"] / 1e6}
        return row | {"loss": loss.item()}


def is_trying(device: str) -> bool:
    """Whether chameleon still compares plans for this step."""
    if device != "chameleon":
        return False
    from torch_chameleon import _testing

    return bool(_testing.forecast_costs()["is_trying"])


def wait_until_pinned(device: str) -> None:
    """Host memory is registered in the background: none of it is timed."""
    if device == "chameleon":
        import torch_chameleon

        torch.chameleon.synchronize()
        torch_chameleon._C.await_pinning(0)


def native_figures(device: str) -> dict:
    """Memory of a way that is not chameleon's."""
    if device != "cuda":
        return {"peak_bytes": 0}  # not known
    return {
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def cuda_mallocs() -> int:
    """How often PyTorch's own allocator asked CUDA for memory so far."""
    return torch.cuda.memory_stats().get("num_device_alloc", 0)


def swapped(steps: int, mallocs: int) -> dict:
    """What chameleon adds: bytes, waits, room."""
    import torch_chameleon

    stats = torch_chameleon.swap_stats()
    last = torch_chameleon.profiler.last_step()
    return {
        "peak_bytes": stats["peak_resident_bytes"],
        "logical_peak_bytes": stats["peak_logical_bytes"],
        "host_bytes": stats["peak_host_bytes"],
        "in_gb": stats["bytes_in"] / steps / 1e9,
        "out_gb": stats["bytes_out"] / steps / 1e9,
        "stall_share": last["stall_ns"] / max(1, last["duration_ns"]),
        "compute_ms": last["compute_ns"] / 1e6,
        "ops": last["ops"],
        **{
            key: stats[key] / steps
            for key in ("host_waits", "commits", "compactions", "rerun_ops")
        },
        "cuda_mallocs": mallocs / steps,
        **{
            key: stats[key]
            for key in ("pageable_bytes", "foreign_bytes", "pinning_refusals")
        },
        # No more is ever reserved than the budget.
        "active/reserved": stats["peak_resident_bytes"] / stats["hbm_budget"],
    }


def traced(path: str) -> dict:
    """Writes the last step's trace, for its bound; the link that it tells."""
    import torch_chameleon

    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "step.jsonl"
        torch_chameleon.profiler.export_trace(file)
        text = file.read_bytes()
    pathlib.Path(path).write_bytes(gzip.compress(text))
    header = json.loads(text.splitlines()[0])
    return {"link_gb_s": [header[key] / 1e9 for key in ("bw_in", "bw_out")]}


def measure(
    training: str,
    way: str,
    place: str,
    budget: int = 0,
    small: bool = False,
    seconds: float = 600.0,
    trace: str = "",
    profile: bool = False,
    gpu: str = "",
) -> Iterator[dict]:
    """Trains some steps and times them.

    Args:
        training: A name of `benchmark_trainings.TRAININGS`.
        way: A name of `ways.WAYS`.
        place: One of `places.PLACES`; or "simulated", where nothing is
            measured: chameleon's model says how long a step takes on `gpu`.
        budget: Bytes of device memory; 0: all there is.
        small: A small model, for tests.
        seconds: It ends by itself after about so many, with fewer steps.
        trace: A file for the trace of a step, compressed; empty: none.
        profile: Whether one more step runs under torch.profiler.
        gpu: The simulated one.

    Yields:
        Rows: times in ms, memory in bytes, losses.
    """
    end = time.monotonic() + seconds
    is_modelled = place == "simulated"
    is_ours = way == "chameleon" or is_modelled
    device = "chameleon" if is_ours else places.TIMED[place]
    host_bytes = used_host_bytes()
    if is_modelled:
        import torch_chameleon

        torch_chameleon.config.physical_device = "simulated"
        torch_chameleon.config.simulated_gpu = gpu
    elif is_ours:
        places.begin(place)
    if is_ours:
        limit(device, budget)
    try:
        made = TRAININGS[training](device, small)
        loop = Loop(WAYS[way](made), device, is_modelled)
        if not is_ours:
            limit(device, budget)
        yield {"made_s": seconds - (end - time.monotonic())}
        warm: list[dict] = []
        most_host = host_bytes
        warm_until = time.monotonic() + WARM_SHARE * (end - time.monotonic())
        while len(warm) < WARM_STEPS or (
            is_trying(device)
            and len(warm) < MOST_WARM
            and time.monotonic() < warm_until
        ):
            warm.append(loop())
            yield {"warm": len(warm), **warm[-1]}
        wait_until_pinned(device)
        mallocs = 0
        if is_ours:
            import torch_chameleon

            torch_chameleon.reset_swap_stats()
            mallocs = 0 if is_modelled else cuda_mallocs()
        made.rewind()
        rows: list[dict] = []
        while not rows or (len(rows) < STEPS and time.monotonic() < end):
            rows.append(loop())
            most_host = max(most_host, used_host_bytes())
            yield rows[-1]
    except UnavailableError as error:
        yield {"point": {"error": f"not here: {error}"}}
        return
    except torch.OutOfMemoryError as error:
        text = str(error).splitlines()[0]
        yield {"point": {"error": f"out of memory: {text}"}}
        return
    times = [row["step_ms"] for row in rows]
    ms = statistics.median(times)
    figures = {
        "ms": ms,
        "worst_ms": max(times),
        "steps": len(rows),
        "warm_steps": len(warm),
        "was_trying": is_trying(device),
        "examples_per_s": made.batch / ms * 1e3,
    }
    if not is_modelled:
        figures |= {
            "host_ms": statistics.median(row["host_ms"] for row in rows),
            # The first ones: every way's are of the same steps.
            "losses": [row["loss"] for row in warm[:WARM_STEPS]],
            "process_host_bytes": resource.getrusage(
                resource.RUSAGE_SELF
            ).ru_maxrss
            << 10,
            "machine_host_bytes": most_host - host_bytes,
        }
    if is_ours:
        made_since = 0 if is_modelled else cuda_mallocs() - mallocs
        figures |= swapped(len(rows), made_since)
    else:
        figures |= native_figures(device)
    if trace and is_ours:
        figures |= traced(trace)
    yield {"point": figures}
    if profile:
        yield {"profile": profiled(loop, device, on_gpu=place == "cuda")}


if __name__ == "__main__":
    gc.disable()
    for each in measure(**json.loads(sys.argv[1])):
        print(json.dumps(each), flush=True)
