"""Makes a table of what run.py measured.

    python tests/benchmarks/training/table.py [FILE] [--readme FILE]

Without FILE it is of this machine's results. Without --readme it is printed;
with it, it goes between the marks there.
"""

from __future__ import annotations

import argparse
import json
import pathlib

from run import default_results

BEGIN = "<!-- training/table.py writes from here -->"
END = "<!-- to here -->"
HEAD = (
    *("training", "k", "way", "ms a step", "p99", "of in memory"),
    *("GB in/out", "bound/ours", "stall", "host waits", "commits"),
    *("peak, GiB", "host, GiB"),
)
_COUNTS = ("host_waits", "commits")  # a step
_GIB = 1 << 30


def _row(key: str, row: dict, roomy_ms: float | None) -> list[str]:
    training, way, k = key.split()
    start = [training, "-" if k == "0" else k, row.get("way", way)]
    if "error" in row:
        return [*start, row["error"], *[""] * (len(HEAD) - 4)]
    ratio = row.get("bound/ours")
    return [
        *start,
        f"{row['ms']:.1f}",
        f"{row['p99_ms']:.1f}",
        f"{row['ms'] / roomy_ms:.2f}" if roomy_ms else "-",
        f"{row['in_gb']:.1f}/{row['out_gb']:.1f}" if "in_gb" in row else "-",
        f"{ratio:.2f}" if ratio else "-",
        f"{row['stall_share']:.2f}" if "stall_share" in row else "-",
        *(f"{row[key]:.1f}" if key in row else "-" for key in _COUNTS),
        f"{row['peak_bytes'] / _GIB:.1f}",
        f"{row.get('host_bytes', row['process_host_bytes']) / _GIB:.1f}",
    ]


def table(results: dict) -> str:
    """The results as Markdown.

    Args:
        results: What run.py wrote.
    """
    points, machine = results["points"], results["machine"]
    lines = [
        "Measured on {gpu}, driver {driver}, torch {torch}, {date}, with {}. "
        "Times and bytes are of one step; k is the peak in memory over the "
        "budget.".format(
            " and ".join(f"`{each}`" for each in machine["commands"]),
            **{"driver": "none", **machine},
        ),
        "",
        f"| {' | '.join(HEAD)} |",
        "|" + "---|" * len(HEAD),
    ]
    for key, row in points.items():
        roomy = points.get(f"{key.split()[0]} in_memory 0", {})
        lines.append(f"| {' | '.join(_row(key, row, roomy.get('ms')))} |")
    return "\n".join(lines)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=pathlib.Path, nargs="?")
    parser.add_argument("--readme", type=pathlib.Path)
    options = parser.parse_args()
    results = options.results or default_results()
    text = table(json.loads(results.read_text()))
    if options.readme is None:
        print(text)
        return
    page = options.readme.read_text()
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    options.readme.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


if __name__ == "__main__":
    main()
