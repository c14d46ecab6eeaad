"""How many cases ran, passed and were excused, by suite, dtype and pager.

A case is one entry, check, dtype and pager, with all its samples. Each process
writes what it counted to CONFORMANCE_COUNTS (a folder), if that is set.
`python -m conformance.counting FOLDER README` adds the files up and writes the
table between the markers in the README.
"""

import collections
import json
import os
import sys
from pathlib import Path

from conformance.pagers import PAGERS

BEGIN = "<!-- conformance: begin -->"
END = "<!-- conformance: end -->"

# (suite, dtype, pager) -> cases run, passed, excused, samples
COUNTS = collections.defaultdict(lambda: [0, 0, 0, 0])


def count(suite, dtype, pager, passed, excused, samples):
    row = COUNTS[suite, dtype, pager]
    row[0] += 1
    row[1] += passed
    row[2] += excused
    row[3] += samples


def save():
    """Writes this process's counts, if asked to."""
    folder = os.environ.get("CONFORMANCE_COUNTS")
    if not folder or not COUNTS:
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    rows = [[*key, *value] for key, value in sorted(COUNTS.items())]
    file = Path(folder) / f"{os.getpid()}.json"
    file.write_text(json.dumps(rows))


def load(folder):
    """The sum of all files in a folder."""
    total = collections.defaultdict(lambda: [0, 0, 0, 0])
    for file in sorted(Path(folder).glob("*.json")):
        for suite, dtype, pager, *figures in json.loads(file.read_text()):
            row = total[suite, dtype, pager]
            for i, figure in enumerate(figures):
                row[i] += figure
    return total


def table(counts):
    """The table as Markdown: run / passed / excused."""
    lines = [
        f"| suite | dtype | {' | '.join(PAGERS)} | samples |",
        "|---|---|" + "---:|" * (len(PAGERS) + 1),
    ]
    sums = collections.defaultdict(lambda: [0, 0, 0, 0])
    groups = sorted({(suite, dtype) for suite, dtype, _ in counts})
    for suite, dtype in groups:
        cells, samples = [], 0
        for pager in PAGERS:
            row = counts.get((suite, dtype, pager), [0, 0, 0, 0])
            samples += row[3]
            cells.append(" / ".join(f"{n:,}" for n in row[:3]))
            for i, figure in enumerate(row):
                sums[pager][i] += figure
        lines.append(
            f"| {suite} | {dtype} | {' | '.join(cells)} | {samples:,} |"
        )
    cells = [" / ".join(f"{n:,}" for n in sums[p][:3]) for p in PAGERS]
    samples = sum(sums[p][3] for p in PAGERS)
    lines.append(f"| all | | {' | '.join(cells)} | {samples:,} |")
    return "\n".join(lines)


def write(folder, readme):
    """Puts the table between the markers."""
    text = Path(readme).read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    if not tail:
        sys.exit(f"{readme} lacks the markers '{BEGIN}' and '{END}'")
    body = table(load(folder))
    Path(readme).write_text(f"{head}{BEGIN}\n{body}\n{END}{tail}")


if __name__ == "__main__":
    write(*sys.argv[1:])
