"""The table of python/docs/limits.md, out of memory/policy/README.md.

    python tests/python/limits_table.py

writes it: modelled figures, the same that the planner's page has.
"""

import pathlib

ROOT = pathlib.Path(__file__).parents[2]
SOURCE = ROOT / "memory" / "policy" / "README.md"
PAGE = ROOT / "python" / "docs" / "limits.md"
BEGIN = (
    "<!-- tests/python/limits_table.py writes from here, out of "
    "memory/policy/README.md -->"
)
END = "<!-- to here -->"
TITLES = {
    "H200": "**h200, re-running too, modelled**",
    "RTX 4090": "**rtx4090, re-running too, modelled**",
}
HEADER = "| {} | k | in memory, ms | swapping | re-running too |"


def rows_under(title):
    """The rows of the table below a title, as cells."""
    below = SOURCE.read_text().split(title)[1].splitlines()
    start = next(i for i, line in enumerate(below) if line.startswith("|"))
    for line in below[start + 2 :]:
        if not line.startswith("|"):
            return
        yield [cell.strip(" *") for cell in line.strip("|").split("|")]


def table():
    """All lines between the markers."""
    lines = []
    for card, title in TITLES.items():
        lines += ["", HEADER.format(card), "|--|--|--|--|--|"]
        for cells in rows_under(title):
            model, k, in_memory, _, _, swapping, rerunning = cells[:7]
            row = (f"`{model}`", k, in_memory, swapping, rerunning)
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join([*lines, ""])


def split():
    """The page before, between and after the markers."""
    head, rest = PAGE.read_text().split(BEGIN + "\n")
    body, tail = rest.split(END)
    return head + BEGIN + "\n", body, END + tail


def main():
    """Writes the page."""
    head, _, tail = split()
    PAGE.write_text(head + table() + "\n" + tail)


if __name__ == "__main__":
    main()
