"""What would let a training fit, or lower its peak, if worth a change."""

from typing import Any

from torch_chameleon._units import size

_SLOW = 1.05  # times the time in memory
_WORTH = 0.95  # of the peak, or less
_MOST = 3


def is_wanted(figures: dict[str, Any]) -> bool:
    """Whether the script does not fit, or is slow.

    Args:
        figures: Of `plan`.
    """
    if figures["fits"] == "swapped":
        return bool(figures["step_ns"] > _SLOW * figures["in_memory_ns"])
    return bool(figures["fits"] == "no")


def advice(figures: dict[str, Any]) -> list[str]:
    """Changes, each by itself, the one that helps most first.

    Args:
        figures: Of `plan`; `report` has fewer. "peaks_after" has the peak
            after each change, by name, as in `lives.peaks_after`; empty where
            none is wanted.

    Returns:
        A sentence for each, three at most, none for what does not help.
    """
    found = sorted(
        (peak, name)
        for name, peak in figures["peaks_after"].items()
        if peak <= _WORTH * figures["peak_bytes"] and _helps(name, figures)
    )
    host = [_host(figures)] if figures.get("why") == "host" else []
    peaks = [_SENTENCES[name](figures, size(peak)) for peak, name in found]
    return (host + peaks)[:_MOST]


def _host(figures: dict[str, Any]) -> str:
    """Nothing else lets it fit without a change of the script."""
    needed, share = figures["host_bytes"], figures["host_share"]
    if share == 1:
        return f"{size(needed)} of the host's memory for tensors that wait"
    return (
        f"a host with {size(needed / share)} of memory, of which tensors that "
        f"wait may take {share:.0%}"
    )


def _fused(figures: dict[str, Any], peak: str) -> str:
    return (
        f"fused=True for {' and '.join(figures['to_fuse'])}: a peak of {peak}, "
        "modelled; the step makes no lists of temporary tensors then"
    )


def _freed(figures: dict[str, Any], peak: str) -> str:
    return (
        "zero_grad() right behind step(), with set_to_none=True: a peak of "
        f"{peak}, modelled; no gradients of the step before are in the forward"
    )


def _half(figures: dict[str, Any], peak: str) -> str:
    return (
        "half as many samples at a time (in training, the gradients of two "
        f"batches added): a peak of {peak} at best, modelled"
    )


def _states(figures: dict[str, Any], peak: str) -> str:
    return (
        f"states of {' and '.join(figures['states'])} in bfloat16, by an "
        f"optimizer that keeps them so: a peak of {peak}, modelled"
    )


_SENTENCES = {
    "fused": _fused,
    "freed": _freed,
    "half": _half,
    "states": _states,
}


def _helps(name: str, figures: dict[str, Any]) -> bool:
    if name == "half":
        return True
    if figures["fits"] == "no" and figures.get("limit") == "op":
        return False  # one op needs as much as before
    return name != "fused" or bool(figures["to_fuse"])
