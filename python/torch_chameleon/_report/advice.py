"""What a report's numbers say to do."""

from torch_chameleon._report.figures import Figures, next_piece
from torch_chameleon._report.text import duration, size

_MUCH_STALL = 0.10
_MUCH_MISSED = 0.05
_NEARLY_FULL = 0.90
_MUCH_GAIN = 0.01


def warnings_of(figures: Figures) -> list[tuple[str, str]]:
    """What is wrong, and what to turn.

    Args:
        figures: Of `gather`.

    Returns:
        (finding, advice), the most important first; empty: nothing to do.
    """
    found = []
    stats, step = figures.stats, figures.step
    if step is not None and figures.step_ns > 0:
        found += _step_warnings(figures, step)
    limit = float(figures.options["oversubscription"] or 4)
    allowed = limit * stats["hbm_budget"]
    peak = stats["peak_logical_bytes"]
    if allowed and peak > _NEARLY_FULL * allowed:
        found.append(
            (
                f"Tensors took up to {size(peak)}; {size(allowed)} may be "
                "live.",
                (
                    "A little more raises OutOfMemoryError."
                    if peak <= allowed
                    else "What ops return is let through; the next tensor that "
                    "is made beside it raises OutOfMemoryError."
                )
                + " Raise torch_chameleon.config.oversubscription (host memory "
                "permitting) or hbm_budget.",
            )
        )
    host, most = stats["peak_host_bytes"], stats["host_budget"]
    if most and host > _NEARLY_FULL * most:
        found.append(
            (
                f"Evicted tensors took up to {size(host)} of the "
                f"{size(most)} of host memory that they may take.",
                "Raise torch_chameleon.config.host_budget if the machine has "
                "more.",
            )
        )
    return found


def _step_warnings(
    figures: Figures, step: dict[str, int]
) -> list[tuple[str, str]]:
    if figures.fits:
        return [
            (
                "Nothing was moved in the last step: everything fits.",
                "Swapping costs nothing here. What a larger model or batch "
                "costs, `python -m torch_chameleon plan` says.",
            )
        ]
    found = []
    stall = figures.waited_ns / figures.step_ns
    moved = step["bytes_in"] + step["bytes_out"]
    if stall > _MUCH_STALL:
        advice = []
        if _link_ns(figures, step) > 0.8 * figures.step_ns:
            advice.append(
                "These bytes take the link that long, however they are timed: "
                "only fewer bytes help."
            )
        else:
            advice.append(
                f"With better timing the step takes "
                f"{duration(step['bound_ns'])} for the same bytes."
            )
        gain = gain_of_more(figures)
        if gain is not None and gain[1] > _MUCH_GAIN * figures.step_ns:
            advice.append(
                f"{size(gain[0])} more of hbm_budget would save "
                f"{duration(gain[1])} a step (modelled)."
            )
        if figures.options["recompute"] != "auto":
            advice.append(
                'torch_chameleon.config.recompute = "auto" lets ops run again '
                "where that is faster than moving bytes."
            )
        found.append(
            (
                f"Compute waited for bytes or room for {stall:.0%} of the last "
                f"step ({duration(figures.waited_ns)}; {size(moved)} moved).",
                " ".join(advice),
            )
        )
    if step["forecast_misses"] > _MUCH_MISSED * max(step["ops"], 1):
        found.append(
            (
                f"{step['forecast_misses']:,} of {step['ops']:,} ops of the "
                "last step were not as forecast.",
                "Copies then come when they are needed and not before. Steps "
                "are learned once they repeat: keep shapes to a few.",
            )
        )
    return found


def _link_ns(figures: Figures, step: dict[str, int]) -> float:
    """How long the step's bytes take at least, in either direction."""
    return max(
        step[moved] / rate * 1e9 if rate > 0 else 0.0
        for moved, rate in (
            ("bytes_in", figures.link_in_bytes_per_s),
            ("bytes_out", figures.link_out_bytes_per_s),
        )
    )


def gain_of_more(figures: Figures) -> tuple[int, int] | None:
    """What a little more budget would save: (bytes more, ns a step).

    Both by the planner's model, so that like is compared with like.

    Args:
        figures: Of `gather`.

    Returns:
        None: not known, or the step fits already.
    """
    budget = figures.stats["hbm_budget"]
    more = budget + next_piece(budget)
    steps = {row.bytes: row.step_ns for row in figures.budgets}
    now, then = steps.get(budget), steps.get(more)
    if now is None or then is None or budget >= figures.peak_bytes:
        return None
    return more - budget, now - then
