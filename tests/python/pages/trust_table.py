"""How far modelled times can be trusted, for python/docs/cost.md.

Out of python/torch_chameleon/plan/trust.json.
"""

import json
import textwrap

from cost_tables import ROOT, SWAPPING, TITLES, Modelled
from torch_chameleon.plan.trust import basis, data, ratio

H100 = ROOT / "tests/benchmarks/results/nvidia-h100-80gb-hbm3.json"
WIDTH = 117  # of a page's lines


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
    [gpu] = [gpu for gpu, title in TITLES.items() if title == note["card"]]
    times = Modelled().times(note["workload"], gpu, float(note["k"]), SWAPPING)
    return (
        f"So {note['training']}'s {times:.2f} by swapping alone, in "
        f"1/{note['k']} of its peak on the {note['card']}, is overstated "
        f"about twofold: with the published time of a step in memory it is "
        f"{note['with_published_time']:.2f}."
    )


def running_again():
    """What recomputing took where it was measured, and what was modelled."""
    points = json.loads(H100.read_text())["points"]
    roomy, half = points["resnet50 in_memory 0"], points["resnet50 chameleon 2"]
    measured, modelled = (
        half[time] / roomy[time] for time in ("ms", "modelled_ms")
    )
    return (
        f"With recomputing, half of its peak took {measured:.2f} times as long "
        f"as all of it on an H100, measured; modelled {modelled:.2f}."
    )


def memory():
    """How far modelled peaks can be trusted."""
    note = data()["memory"]
    return (
        f"Modelled peaks of memory were {abs(note['most']):.0%} to "
        f"{-note['least']:.0%} below measured ones ({note['source']})."
    )


def table():
    """All rows, with sources, and what follows from them."""
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
    remarks = " ".join((memory(), swapping_alone(), running_again()))
    return "\n".join(
        [*lines, "", textwrap.fill(remarks, WIDTH, break_on_hyphens=False)]
    )
