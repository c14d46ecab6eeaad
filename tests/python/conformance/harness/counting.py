"""How many cases ran, passed and were excused, by suite, dtype and pager.

A case is one entry, check, dtype and pager, with all its samples; of a test
that has no such cases, the test. Each process writes what it counted to
CONFORMANCE_COUNTS (a file), if that is set. `totals()` adds files up and
`write()` puts tables of them between the markers of a page.
"""

import collections
import json
import os
import subprocess
import sys
from pathlib import Path

from conformance.harness.pagers import DROPPING_PAGERS, PAGERS

BEGIN = "<!-- conformance: begin -->"
END = "<!-- conformance: end -->"
FIGURES = 4  # cases run, passed, excused; samples


def _no_cases():
    return collections.defaultdict(lambda: [0] * FIGURES)


COUNTS = _no_cases()  # (suite, dtype, pager) -> figures
TESTS = collections.Counter()  # of pytest, by outcome
_cases_before = 0


def count(suite, dtype, pager, passed, excused=False, samples=1):
    _add(COUNTS[suite, dtype, pager], [1, passed, excused, samples])


def count_all_of(file, suite, dtype):
    """Counts what another process did, as cases of one suite and dtype."""
    for (_, _, pager), figures in totals([file]).items():
        _add(COUNTS[suite, dtype, pager], figures)


def cases():
    """How many have been counted."""
    return sum(figures[0] for figures in COUNTS.values())


def count_test(report):
    """Counts a test; one that has no cases is a case itself."""
    global _cases_before
    if report.when == "setup":
        _cases_before = cases()
    if report.when == "call" or not report.passed:
        TESTS[report.outcome] += 1
    if report.when != "call" or cases() > _cases_before:
        return
    excused = hasattr(report, "wasxfail")
    if excused or not report.skipped:
        file = Path(report.nodeid.partition("::")[0])
        suite = file.stem.removeprefix("test_").replace("_", " ")
        count(suite, "", PAGERS[0], report.passed, excused)


def save(exit_status):
    """Writes this process's counts, if asked to."""
    file = os.environ.get("CONFORMANCE_COUNTS")
    if not file:
        return
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    record = {
        "exit status": int(exit_status),
        "cpu seconds": round(sum(os.times()[:4]), 1),
        "commit": _commit(),
        "tests": TESTS,
        "cases": [[*key, *value] for key, value in sorted(COUNTS.items())],
    }
    # Whoever is interrupted here leaves nothing.
    unfinished = Path(f"{file}.unfinished")
    unfinished.write_text(json.dumps(record))
    unfinished.replace(file)


def _commit():
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def totals(files):
    """The sum of all files' cases, as COUNTS."""
    total = _no_cases()
    for file in files:
        for row in json.loads(Path(file).read_text())["cases"]:
            _add(total[tuple(row[:-FIGURES])], row[-FIGURES:])
    return total


def _add(row, figures):
    for i, figure in enumerate(figures):
        row[i] += figure


def table(counts, *, dtypes):
    """Markdown: run / passed / excused by pager, for each suite (and dtype)."""
    rows = collections.defaultdict(_no_cases)
    for (suite, dtype, pager), figures in sorted(counts.items()):
        name = (suite, dtype) if dtypes else (suite,)
        _add(rows[name][pager], figures)
        _add(rows[()][pager], figures)
    everything = rows.pop((), {})
    names = ("suite", "dtype") if dtypes else ("suite",)
    dropping = [p for p in DROPPING_PAGERS if p in everything]
    columns = [*PAGERS, *dropping]
    lines = [
        _line([*names, *columns, "samples"]),
        "|" + "---|" * len(names) + "---:|" * (len(columns) + 1),
        *(_line([*name, *_cells(row, columns)]) for name, row in rows.items()),
        _line(["all", *[""] * (len(names) - 1), *_cells(everything, columns)]),
    ]
    return "\n".join(lines)


def _line(cells):
    return f"| {' | '.join(cells)} |"


def _cells(row, columns):
    for pager in columns:
        figures = row[pager][:3] if pager in row else []
        yield " / ".join(f"{figure:,}" for figure in figures)
    yield f"{sum(figures[-1] for figures in row.values()):,}"


def write(page, body):
    """Puts it between the markers."""
    text = Path(page).read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    if not tail:
        sys.exit(f"{page} lacks the markers '{BEGIN}' and '{END}'")
    Path(page).write_text(f"{head}{BEGIN}\n{body}\n{END}{tail}")
