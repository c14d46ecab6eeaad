"""The picture: memory over time, and the budget."""

from pathlib import Path
from typing import Any

_MIB = 1 << 20


def write_plot(path: Path, summary: dict[str, Any], limited: Any) -> bool:
    """Draws memory over time of the run within the budget.

    Args:
        path: The PNG to write.
        summary: Of `report.summarize`.
        limited: Result of the run within the budget.

    Returns:
        Whether it was drawn: False where matplotlib is missing.
    """
    try:
        import matplotlib
    except ModuleNotFoundError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    budget = summary["hbm_budget_bytes"] / _MIB
    figure, axes = plt.subplots(figsize=(9, 5), layout="constrained")
    seconds, logical, resident, host = _columns(limited["history"])
    axes.fill_between(
        seconds, logical, color="#d9e4f2", label="live tensors", step="post"
    )
    axes.step(
        seconds, host, color="#c98a2b", label="on the host", where="post", lw=1
    )
    axes.step(
        seconds,
        resident,
        color="#1f4e9c",
        label="resident in device memory",
        where="post",
        lw=1,
    )
    axes.axhline(
        budget, color="#b3202c", ls="--", label=f"budget: {budget:.0f} MiB"
    )
    axes.axhline(
        summary["peak_bytes"] / _MIB,
        color="#666666",
        ls=":",
        label=f"peak without a limit: {summary['peak_bytes'] / _MIB:.0f} MiB",
    )
    axes.set(
        xlabel="seconds",
        ylabel="MiB",
        xlim=(0, seconds[-1]),
        ylim=(0, None),
        title=(
            f"GPT, {summary['parameters'] / 1e6:.1f} M parameters, "
            f"within 1/{summary['k']:g} of the memory it needs: the first "
            f"{limited['history_steps']} AdamW steps\nlosses equal to the "
            f"native run: {'every bit' if summary['losses_equal'] else 'NO'}; "
            f"measured on {summary['machine']}"
        ),
    )
    axes.title.set_fontsize(10)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return True


def _columns(
    history: list[tuple[int, int, int, int]],
) -> tuple[list[float], list[float], list[float], list[float]]:
    start_ns = history[0][0]
    return (
        [(row[0] - start_ns) / 1e9 for row in history],
        [row[1] / _MIB for row in history],
        [row[2] / _MIB for row in history],
        [row[3] / _MIB for row in history],
    )
