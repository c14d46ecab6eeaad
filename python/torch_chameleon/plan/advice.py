"""What would lower a script's peak, where that is worth a change."""

from typing import Any

from torch_chameleon.plan.units import size

_SLOW = 1.05  # times the time in memory
_WORTH = 0.95  # of the peak, or less


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
        figures: Of `plan`. "peaks_after" has the peak after each change, by
            name, as in `lives.peaks_after`; empty where none is wanted.

    Returns:
        A sentence for each, none for what does not help.
    """
    found = sorted(
        (peak, name)
        for name, peak in figures["peaks_after"].items()
        if peak <= _WORTH * figures["peak_bytes"] and _helps(name, figures)
    )
    return [_SENTENCES[name](figures, size(peak)) for peak, name in found]


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


_SENTENCES = {"fused": _fused, "freed": _freed, "half": _half}


def _helps(name: str, figures: dict[str, Any]) -> bool:
    if name == "half":
        return True
    if figures["fits"] == "no" and figures.get("limit") == "op":
        return False  # one op needs as much as before
    return name != "fused" or bool(figures["to_fuse"])
