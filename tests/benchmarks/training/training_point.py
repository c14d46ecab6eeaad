"""One training, one way, one budget, measured: a process of its own.

    python training_point.py ARGUMENTS

ARGUMENTS are those of `measure` as JSON. Each step's time is a JSON line of its
own, flushed, so that what ends the process costs what comes after it; then
follows {"point": the figures}. A way that runs out of memory or cannot run says
so in their `error`. No step is marked: the code is the same on every device.
With a budget, steps run until chameleon's plan is settled or the time is up;
`settled` says which.
"""

from __future__ import annotations

import gc
import json
import resource
import statistics
import sys
import time
from collections.abc import Iterator

import places
import swap_figures
import torch
from benchmark_trainings import TRAININGS, state_bytes
from profiled import profiled
from settling import Settling
from texts import tokens_per_s
from ways import WAYS, UnavailableError

WARM_STEPS = 5  # at least; with a budget until the plan is settled
STEPS = 6  # that are timed
# At most, of a small model: its steps are never alike, and mean nothing.
SMALL_WARM = 8


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
        if self._device == "chameleon":
            row |= swap_figures.split()
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


def refuse_what_cannot_fit(training: str, small: bool) -> None:
    """Before a model is made that device and host together cannot hold.

    Raises:
        UnavailableError: With the sum.
    """
    import torch_chameleon

    least = state_bytes(training, small)
    if not least:
        return
    torch.chameleon.init()
    stats = torch_chameleon.swap_stats()
    device, host = stats["hbm_budget"], stats["host_budget"]
    if least > device + host:
        raise UnavailableError(
            f"parameters, gradients and AdamW's state are {least / 1e9:.3g} "
            f"GB; there are {device / 1e9:.3g} GB of device memory and "
            f"{host / 1e9:.3g} GB of host memory, 80 % of what is available"
        )


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
    all_steps: int = 0,
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
        all_steps: So many are run at least, the warm ones counted.

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
        if is_ours:
            refuse_what_cannot_fit(training, small)
        made = TRAININGS[training](device, small)
        loop = Loop(WAYS[way](made), device, is_modelled)
        if not is_ours:
            limit(device, budget)
        yield {"made_s": seconds - (end - time.monotonic())}
        warm: list[dict] = []
        most_host = host_bytes
        has_plan = is_ours and budget > 0
        settling = Settling(made.is_varying)
        most_warm = SMALL_WARM if small else sys.maxsize
        while len(warm) < WARM_STEPS or (
            has_plan
            and not settling.is_settled
            and len(warm) < most_warm
            # What is timed has its time too.
            and time.monotonic() + (STEPS + 1) * warm[-1]["step_ms"] / 1e3 < end
        ):
            warm.append(loop())
            settling.add(warm[-1]["step_ms"], is_trying(device))
            yield {"warm": len(warm), **warm[-1]}
        is_settled = settling.is_settled
        wait_until_pinned(device)
        mallocs = 0
        if is_ours:
            import torch_chameleon

            torch_chameleon.reset_swap_stats()
            mallocs = 0 if is_modelled else swap_figures.cuda_mallocs()
        made.rewind()
        rows: list[dict] = []
        wanted = max(STEPS, all_steps - len(warm))
        while not rows or (len(rows) < wanted and time.monotonic() < end):
            rows.append(loop())
            most_host = max(most_host, used_host_bytes())
            yield rows[-1]
    except (UnavailableError, ModuleNotFoundError) as error:
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
    if has_plan:
        figures["settled"] = is_settled and not figures["was_trying"]
    if not small and (speed := tokens_per_s(training, ms)):
        figures["tokens_per_s"] = speed
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
        made_since = 0 if is_modelled else swap_figures.cuda_mallocs() - mallocs
        figures |= swap_figures.swapped(rows, made_since)
    else:
        figures |= native_figures(device)
    if trace and is_ours:
        figures |= swap_figures.traced(trace)
    yield {"point": figures}
    if has_plan and not is_modelled:
        yield {"link_busy": swap_figures.link_busy(loop)}
    if profile:
        yield {"profile": profiled(loop, device, on_gpu=place == "cuda")}


if __name__ == "__main__":
    gc.disable()
    for each in measure(**json.loads(sys.argv[1])):
        print(json.dumps(each), flush=True)
