"""The tables of results/fragmentation.md, made of the figures that are kept."""

from __future__ import annotations

import json
import pathlib

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"
FIGURES = RESULTS / "fragmentation.json"
PAGE = FIGURES.with_suffix(".md")
MARKS = (
    "<!-- fragmentation/run.py writes from here -->",
    "<!-- to here -->",
)
PYTORCHS = ("default", "expandable")
ALLOCATORS = (*PYTORCHS, "chameleon")


def rounded(row: dict) -> dict:
    """The figures with six digits."""
    return json.loads(
        json.dumps(row), parse_float=lambda text: float(f"{float(text):.6g}")
    )


def kept() -> dict[str, dict]:
    """The figures, by trace."""
    return json.loads(FIGURES.read_text())


def write(rows: dict[str, dict]) -> None:
    """Keeps the figures, and writes the tables into the page."""
    FIGURES.write_text(json.dumps(rows, indent=1) + "\n")
    begin, end = MARKS
    before, _, rest = PAGE.read_text().partition(begin)
    after = rest.partition(end)[2]
    PAGE.write_text(f"{before}{begin}\n\n{markdown(rows)}\n{end}{after}")


def markdown(rows: dict[str, dict]) -> str:
    """The tables of these figures."""
    calls = [f"{each}: driver calls" for each in ALLOCATORS]
    return "\n".join(
        [
            "**The smallest card, over the live peak**\n",
            _table(
                ["ops", "steps", "live peak, GB", *ALLOCATORS],
                {name: _smallest(row) for name, row in rows.items()},
            ),
            "**A steady step there**\n",
            _table(
                [
                    *calls,
                    *(f"{each}: retries" for each in PYTORCHS),
                    "chameleon: GB moved",
                ],
                {name: _there(row) for name, row in rows.items()},
            ),
            "**With room for all**\n",
            _table(
                [*(f"{each}: reserved" for each in ALLOCATORS), *calls],
                {name: _roomy(row) for name, row in rows.items()},
            ),
            "**chameleon within the live peak, GB a step**\n",
            _table(
                ["over the link", "moved inside HBM"],
                {
                    name: _moved(row["chameleon"]["at_peak"])
                    for name, row in rows.items()
                },
            ),
            "**chameleon within half of it, GB a step**\n",
            _table(
                ["over the link", "moved inside HBM"],
                {
                    name: _moved(row["chameleon"]["at_half"])
                    for name, row in rows.items()
                    if "at_half" in row["chameleon"]
                },
            ),
        ]
    )


def _smallest(row: dict) -> list[str]:
    return [
        f"{row['ops']:,}",
        str(row["steps"]),
        _gb(row["peak_bytes"]),
        *(f"+{row[each]['smallest']['lost']:.2%}" for each in ALLOCATORS),
    ]


def _there(row: dict) -> list[str]:
    there = {each: row[each]["smallest"] for each in ALLOCATORS}
    return [
        *(_count(there[each]["driver_calls"]) for each in ALLOCATORS),
        *(_count(there[each]["retries"]) for each in PYTORCHS),
        _gb(there["chameleon"]["moved_bytes"]),
    ]


def _roomy(row: dict) -> list[str]:
    roomy = [row[each]["roomy"] for each in ALLOCATORS]
    return [
        *(f"{each['reserved']:.3f}" for each in roomy),
        *(_count(each["driver_calls"]) for each in roomy),
    ]


def _moved(there: dict) -> list[str]:
    return [_gb(there["link_bytes"]), _gb(there["moved_bytes"])]


def _gb(size: float) -> str:
    return f"{size / 1e9:.3f}"


def _count(count: float) -> str:
    return f"{count:,.1f}" if count else "0"


def _table(columns: list[str], rows: dict[str, list[str]]) -> str:
    lines = [
        ["trace", *columns],
        ["--", *("--:" for _ in columns)],
        *([name, *cells] for name, cells in rows.items()),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
