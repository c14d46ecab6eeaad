"""The curve: how long a step takes with less memory."""

from pathlib import Path
from typing import Any

_GIB = 1 << 30
_MIB = 1 << 20


def write_plot(path: Path, figures: dict[str, Any]) -> None:
    """Draws the slowdown over budgets. Needs matplotlib.

    Args:
        path: The picture to write.
        figures: Of `plan`.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    unit, name = (
        (_GIB, "GiB") if figures["peak_bytes"] >= _GIB else (_MIB, "MiB")
    )
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    compute = figures["in_memory_ns"]
    points = [*figures["curve"]]
    if figures["fits"] == "swapped":
        points.append(figures)
    if all(point["budget_bytes"] < figures["peak_bytes"] for point in points):
        names = ("step_ns", "swapping_ns")
        whole = dict.fromkeys(names, figures["in_memory_ns"])
        points.append({"budget_bytes": figures["peak_bytes"], **whole})
    points.sort(key=lambda point: point["budget_bytes"])
    for key, label, style in (
        ("step_ns", "a step", {"color": "#1f4e9c", "marker": "o"}),
        (
            "swapping_ns",
            "by swapping alone",
            {"color": "#999999", "lw": 0.8, "ls": "--"},
        ),
    ):
        known = [point for point in points if point.get(key) is not None]
        axes.plot(
            [point["budget_bytes"] / unit for point in known],
            [point[key] / compute for point in known],
            label=label,
            **style,
        )
    if figures["fits"] == "swapped":
        axes.plot(
            figures["budget_bytes"] / unit,
            figures["step_ns"] / compute,
            color="#b3202c",
            marker="s",
            ls="",
            label="the budget",
        )
    if figures["memory_bytes"] < 2 * figures["peak_bytes"]:
        axes.axvline(
            figures["memory_bytes"] / unit,
            color="#666666",
            ls=":",
            label=f"memory of {figures['gpu']}",
        )
    axes.set(
        xlabel=f"budget, {name}",
        ylabel="time of a step; in memory: 1",
        ylim=(0.9, None),
    )
    axes.set_title(
        f"{Path(figures['script']).name} on {figures['gpu']}, modelled; "
        f"peak {figures['peak_bytes'] / unit:.1f} {name}",
        wrap=True,
    )
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
