"""What pages say of how far modelled times can be trusted, out of trust.json.

    python tests/python/trust_pages.py

writes it into README.md and python/docs/limits.md.
"""

import json
import textwrap

import limits_table
from torch_chameleon.plan.trust import basis, data, ratio

README = limits_table.ROOT / "README.md"
LIMITS = limits_table.PAGE
H100 = limits_table.ROOT / "tests/benchmarks/results/nvidia-h100-80gb-hbm3.json"
BEGIN = (
    "<!-- tests/python/trust_pages.py writes from here, out of "
    "python/torch_chameleon/plan/trust.json -->"
)
END = "<!-- to here, trust -->"
WIDTH = 160


def rows():
    """All rows, kind by kind, those of any card first."""
    for kind, name in data()["kinds"].items():
        for source in ("published", "measured"):
            for row in data()[source]:
                if row["kind"] == kind:
                    yield name, source, row


def swapping_alone():
    """That the time of ResNet-50's swapping alone is overstated."""
    note = data()["swapping_alone"]
    title = limits_table.TITLES[note["card"]]
    [modelled] = [
        cells[5]
        for cells in limits_table.rows_under(title)
        if cells[:2] == [note["workload"], note["k"]]
    ]
    return (
        f"So {note['training']}'s {modelled} by swapping alone, in "
        f"1/{note['k']} of its peak on the {note['card']}, is overstated "
        f"about twofold: with the published time of a step in memory it is "
        f"{note['with_published_time']:.2f}."
    )


def running_again():
    """What re-running took where it was measured, and what was modelled."""
    points = json.loads(H100.read_text())["points"]
    roomy, half = points["resnet50 in_memory 0"], points["resnet50 chameleon 2"]
    measured, modelled = (
        half[time] / roomy[time] for time in ("ms", "modelled_ms")
    )
    return (
        f"With re-running, half of its peak took {measured:.2f} times as long "
        f"as all of it on an H100, measured; modelled {modelled:.2f}."
    )


def memory():
    """How far modelled peaks can be trusted."""
    note = data()["memory"]
    return (
        f"Modelled peaks of memory were {abs(note['most']):.0%} to "
        f"{-note['least']:.0%} below measured ones ({note['source']})."
    )


def remarks():
    """Below all figures, on either page."""
    text = " ".join((memory(), swapping_alone(), running_again()))
    return textwrap.fill(text, WIDTH, break_on_hyphens=False)


def summary():
    """README's: a row for each kind, without sources."""
    found = {
        (row["kind"], row["gpu"]): f"{ratio(row)} ({basis(row)})"
        for source in ("published", "measured")
        for row in data()[source]
    }
    cards = sorted({row["gpu"] for row in data()["measured"]})
    lines = [
        f"| modelled/measured time | {' | '.join(['published', *cards])} |",
        "|---" * (2 + len(cards)) + "|",
    ]
    for kind, name in data()["kinds"].items():
        cells = [found.get((kind, gpu), "-") for gpu in (None, *cards)]
        lines.append(f"| {' | '.join([name, *cells])} |")
    return "\n".join([*lines, "", remarks()])


def table():
    """limits.md's: all rows, with sources."""
    lines = [
        "| training | card | modelled/measured | of | source |",
        "|--|--|--|--|--|",
    ]
    for name, _, row in rows():
        cells = (
            name,
            row["gpu"] or "see source",
            ratio(row),
            basis(row),
            row["source"],
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", remarks()])


PAGES = {README: summary, LIMITS: table}


def split(page):
    """A page before, between and after the markers."""
    head, rest = page.read_text().split(BEGIN + "\n")
    body, tail = rest.split(END)
    return head + BEGIN + "\n", body, END + tail


def main():
    """Writes the pages."""
    for page, text in PAGES.items():
        head, _, tail = split(page)
        page.write_text(f"{head}\n{text()}\n\n{tail}")


if __name__ == "__main__":
    main()
