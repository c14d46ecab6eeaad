"""The generated parts of the pages for users, each between two marks.

    python tests/python/pages/page_parts.py

writes all of them. The table of python/docs/measured.md is not among them:
`./ci/gpu table` writes it.
"""

import json
from typing import NamedTuple

import cost_tables
import cuda_names
import fragmentation_tables
import marked_part
import trust_table
from torch_chameleon import config

ROOT = cost_tables.ROOT
DOCS = ROOT / "python" / "docs"
DEMO = ROOT / "tests" / "benchmarks" / "results" / "demo_cpu.json"


def demo():
    """What `./ci/demo` found."""
    found = json.loads(DEMO.read_text())
    size = {
        name: f"{value / 2**20:.1f} MiB"
        for name, value in found.items()
        if isinstance(value, int)
    }
    times = (
        found[f"{way}_step_ns"] / 1e6
        for way in ("native", "unlimited", "limited")
    )
    same = all(
        found[f"{what}_equal"] for what in ("losses", "states", "samples")
    )
    rows = {
        "peak without a limit": size["peak_bytes"],
        f"budget, 1/{found['k']:g} of it": size["hbm_budget_bytes"],
        "peak resident, on the host": f"{size['peak_resident_bytes']}, "
        f"{size['peak_host_bytes']}",
        "moved per step, in, out": f"{size['bytes_in_per_step']}, "
        f"{size['bytes_out_per_step']}",
        "time per step: native, without a limit, within the budget": ", ".join(
            f"{ms:.0f} ms" for ms in times
        ),
        "losses, parameters, gradients, optimizer state, generated text": (
            "those of the native run, every bit" if same else "different"
        ),
    }
    lines = [f"| {what} | {value} |" for what, value in rows.items()]
    return "\n".join(["| `./ci/demo` | |", "|---|---|", *lines])


class Part(NamedTuple):
    """A part of a page, and what makes it."""

    page: str
    name: str
    make: object

    def split(self):
        """The page before, within and behind the marks."""
        begin = (
            f"<!-- {self.name}: tests/python/pages/page_parts.py "
            "writes from here -->\n"
        )
        end = f"<!-- {self.name}: to here -->"
        return marked_part.split(DOCS / self.page, begin, end)


PARTS = (
    Part("../../README.md", "fragmentation", fragmentation_tables.from_to),
    Part("allocator.md", "fragmentation", fragmentation_tables.smallest_cards),
    Part("configuration.md", "configuration", config.markdown_table),
    Part("cost.md", "cost", cost_tables.tables),
    Part("cost.md", "trust", trust_table.table),
    Part("from-cuda.md", "cuda-names", cuda_names.table),
    Part("measured.md", "demo", demo),
)


def main():
    """Writes all parts."""
    for part in PARTS:
        head, _, tail = part.split()
        (DOCS / part.page).write_text(f"{head}\n{part.make()}\n\n{tail}")


if __name__ == "__main__":
    main()
