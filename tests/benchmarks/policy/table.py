"""Makes tables and a plot of the benchmark's results.

    python tests/benchmarks/policy/table.py [--results FILE] [--page FILE]

The tables go between the marks in FILE (default: RESULTS.md in this folder),
the plot beside it. Of the default results the summary goes between the marks in
memory/policy/README.md.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import sys

from results import RESULTS, Results

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

import marked_part  # noqa: E402

PAGE = HERE / "RESULTS.md"
README = HERE.parents[2] / "memory/policy/README.md"
PLOT = "policies.svg"  # beside it
BEGIN = "<!-- table.py writes from here -->"
END = "<!-- to here -->"
POLICIES = ("lru", "forecast")
HEAD = (
    "model",
    "k",
    "compute",
    "bound",
    "LRU",
    "forecast",
    "LRU",
    "**forecast**",
    "GB in/out",
    "of Belady's",
    "stall",
    "faults",
    "steps",
    "spread",
    "day",
)
JOINT_HEAD = (
    "model",
    "k",
    "in memory",
    "swapping",
    "**recomputing too**",
    "of in memory",
    "**of in memory**",
    "re-run",
    "ops",
    "GB in/out",
    "stall",
    "faults",
    "day",
)
COLORS = {"lru": "#8c8c8c", "forecast": "#2f7fd6"}
MARKERS = {"lru": "o", "forecast": "o"}
SIZES = {"lru": 26, "forecast": 20}  # one shows in the other
GREY = "#808080"  # legible on white and on black


def workloads_of(results: Results) -> list[str]:
    """In the order of the file."""
    return list(dict.fromkeys(key[0] for key in results.rows))


def gpus_of(results: Results) -> list[str]:
    """In the order of the file."""
    return list(dict.fromkeys(key[1] for key in results.rows))


def ks_of(results: Results) -> list[float]:
    """All but 0, which is the run with unlimited memory."""
    return sorted({key[2] for key in results.rows} - {0.0})


def cells(results: Results, workload: str, gpu: str, k: float) -> list[str]:
    """One line: times in ms; then the bound over each policy's time.

    Empty: nothing was measured.
    """
    rows = {
        policy: results.rows.get((workload, gpu, k, policy), {})
        for policy in POLICIES
    }
    if not any(rows.values()):
        return []
    forecast = rows["forecast"]
    if any(row.get("infeasible") for row in rows.values()):
        return [workload, f"{k:g}", "one op alone needs more"]

    def each(name: str, form: str) -> list[str]:
        return [
            format(row[name], form) if row.get(name) is not None else "-"
            for row in rows.values()
        ]

    def own(name: str, form: str) -> str:
        value = forecast.get(name)
        return "-" if value is None else format(value, form)

    ratios = each("bound/ours", ".3f")
    return [
        workload,
        f"{k:g}",
        own("compute_ms", ".1f"),
        own("bound_ms", ".1f"),
        *each("ms", ".1f"),
        ratios[0],
        f"**{ratios[1]}**",
        f"{own('in_gb', '.1f')}/{own('out_gb', '.1f')}",
        own("bytes/belady", ".2f"),
        own("stall_share", ".2f"),
        own("faults", ".0f"),
        own("steps_to_steady", "d"),
        own("spread", ".2f"),
        own("day", ""),
    ]


def joint_cells(
    results: Results, workload: str, gpu: str, k: float
) -> list[str]:
    """One line: times in ms, and over that of a step in memory.

    Empty: nothing was measured.
    """
    joint = results.rows.get((workload, gpu, k, "joint"), {})
    if "ms" not in joint:
        return []
    roomy = results.rows[workload, gpu, 0.0, "lru"]["ms"]
    swapping = results.rows.get((workload, gpu, k, "forecast"), {}).get("ms")
    return [
        workload,
        f"{k:g}",
        f"{roomy:.1f}",
        "-" if swapping is None else f"{swapping:.1f}",
        f"{joint['ms']:.1f}",
        "-" if swapping is None else f"{swapping / roomy:.2f}",
        f"**{joint['ms'] / roomy:.2f}**",
        f"{joint['rerun_ms']:.1f}",
        f"{joint['rerun_ops']:.0f}",
        f"{joint['in_gb']:.1f}/{joint['out_gb']:.1f}",
        f"{joint['stall_share']:.2f}",
        f"{joint['faults']:.0f}",
        joint["day"],
    ]


def markdown(results: Results) -> str:
    """Two tables for each GPU: swapping alone, and recomputing too."""
    lines = []
    for head, cells_of, title in (
        (HEAD, cells, "swapping alone"),
        (JOINT_HEAD, joint_cells, "recomputing too"),
    ):
        for gpu in gpus_of(results):
            rows = [
                row + [""] * (len(head) - len(row))
                for workload in workloads_of(results)
                for k in ks_of(results)
                if (row := cells_of(results, workload, gpu, k))
            ]
            if not rows:
                continue
            lines += ["", f"**{gpu}, {title}, modelled**", ""]
            lines.append("| " + " | ".join(head) + " |")
            lines.append("|--" * len(head) + "|")
            lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, ""])


def geometric_mean(values: list[float]) -> str:
    """With two decimals; a dash: of nothing."""
    if not values:
        return "-"
    return f"{math.exp(math.fsum(map(math.log, values)) / len(values)):.2f}"


def summary(results: Results) -> str:
    """One table: means of the times of a step, over that of one in memory."""
    lines = [
        "| card | k | models | `lru` | swapping alone | recomputing too |",
        "|---|---|---|---|---|---|",
    ]
    for gpu in gpus_of(results):
        for k in ks_of(results):
            ratios: dict[str, list[float]] = {"lru": [], "forecast": []}
            ratios["joint"] = []
            for workload in workloads_of(results):
                rows = {
                    policy: results.rows.get((workload, gpu, k, policy), {})
                    for policy in ratios
                }
                if any("ms" not in row for row in rows.values()):
                    continue
                in_memory = results.rows[workload, gpu, 0.0, "lru"]["ms"]
                for policy, row in rows.items():
                    ratios[policy].append(row["ms"] / in_memory)
            cells = [f"`{gpu}`", f"{k:g}", str(len(ratios["lru"]))]
            cells += map(geometric_mean, ratios.values())
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(results: Results, path: pathlib.Path) -> None:
    """How near each policy comes to the bound, point by point."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    mpl.rcParams.update(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "policies",
            "font.family": "sans-serif",
            "font.size": 9,
            **dict.fromkeys(
                (
                    "text.color",
                    "axes.labelcolor",
                    "axes.edgecolor",
                    "xtick.color",
                    "ytick.color",
                ),
                GREY,
            ),
        }
    )
    workloads, gpus, ks = map(
        list, (workloads_of(results), gpus_of(results), ks_of(results))
    )
    height = 0.9 + 0.17 * len(workloads) * (len(ks) + 1)
    figure, panels = pyplot.subplots(
        1, len(gpus), figsize=(8.5, height), sharey=True, squeeze=False
    )
    places = {
        (workload, k): -(number * (len(ks) + 1) + line)
        for number, workload in enumerate(workloads)
        for line, k in enumerate(ks)
    }
    for axes, gpu in zip(panels[0], gpus, strict=True):
        for policy in POLICIES:
            points = [
                (row["bound/ours"], places[key[0], key[2]])
                for key, row in results.rows.items()
                if key[1] == gpu and key[3] == policy and "bound/ours" in row
            ]
            axes.scatter(
                *zip(*points, strict=True) if points else ((), ()),
                s=SIZES[policy],
                marker=MARKERS[policy],
                facecolor=COLORS[policy] if policy == "forecast" else "none",
                edgecolor=COLORS[policy],
                label=policy,
                zorder=2 if policy == "lru" else 3,
            )
        axes.axvline(1, color=GREY, linewidth=0.8)
        axes.set_xlim(0.45, 1.02)
        axes.set_title(gpu)
        axes.set_xlabel("lower bound / time (modelled)")
        axes.grid(axis="x", color=GREY, alpha=0.3, linewidth=0.5)
        axes.spines[["top", "right", "left"]].set_visible(False)
    panels[0][0].set_yticks(
        list(places.values()),
        [
            f"{workload}   k = {k:g}" if k == ks[0] else f"{k:g}"
            for workload, k in places
        ],
    )
    panels[0][0].tick_params(axis="y", length=0)
    panels[0][-1].legend(
        loc="upper left", frameon=False, bbox_to_anchor=(0, 1), fontsize=8
    )
    figure.tight_layout()
    figure.savefig(
        path, transparent=True, metadata={"Date": None, "Creator": None}
    )
    pyplot.close(figure)


def put(body: str, page: pathlib.Path) -> None:
    """Puts it between the marks of a page."""
    marked_part.put(f"\n{body}\n", page, BEGIN, END)


def write(results: Results, page: pathlib.Path = PAGE) -> None:
    """Puts tables and plot where they are read."""
    put(markdown(results), page)
    plot(results, page.with_name(PLOT))
    if page == PAGE:
        put(f"\n{summary(results)}\n", README)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--page", type=pathlib.Path, default=PAGE)
    options = parser.parse_args()
    write(Results(options.results), options.page)


if __name__ == "__main__":
    main()
