"""The curve: how long a step takes with less memory."""

from pathlib import Path
from typing import Any

_GIB = 1 << 30


def write_plot(path: Path, figures: dict[str, Any]) -> bool:
    """Draws the slowdown over budgets.

    Args:
        path: The picture to write.
        figures: Of `plan`.

    Returns:
        Whether it was drawn: False where matplotlib is missing.
    """
    try:
        import matplotlib
    except ModuleNotFoundError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    compute = figures["in_memory_ns"]
    axes.plot(
        [row["budget_bytes"] / _GIB for row in figures["curve"]],
        [row["step_ns"] / compute for row in figures["curve"]],
        color="#1f4e9c",
        marker="o",
        label="planner's model",
    )
    if figures["fits"] == "swapped":
        axes.plot(
            figures["budget_bytes"] / _GIB,
            figures["step_ns"] / compute,
            color="#b3202c",
            marker="s",
            ls="",
            label="simulated run",
        )
    axes.axvline(
        figures["memory_bytes"] / _GIB,
        color="#666666",
        ls=":",
        label=f"memory of {figures['gpu']}",
    )
    axes.set(
        xlabel="budget, GiB",
        ylabel="step / step in memory",
        ylim=(0.9, None),
        title=f"{Path(figures['script']).name} on {figures['gpu']}, modelled; "
        f"peak {figures['peak_bytes'] / _GIB:.1f} GiB",
    )
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return True
