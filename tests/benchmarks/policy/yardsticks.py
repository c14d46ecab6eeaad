"""What a step is measured against: its lower bound and Belady's bytes.

    python yardsticks.py ARGUMENTS

ARGUMENTS are those of `yardsticks` as a JSON object. The traces are those of
`torch_chameleon.profiler.export_trace`; nothing else of the package is used.
"""

from __future__ import annotations

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from belady import belady_bytes  # noqa: E402
from bound import Links, Step, lower_bound_ns  # noqa: E402

LINKS = {  # bytes/s: in, out, both together
    "h200": Links(55e9, 55e9, 90e9),
    "rtx4090": Links(25e9, 25e9, 40e9),
    "a100-80gb": Links(25e9, 25e9, 40e9),
}
GPUS = tuple(LINKS)


def read_cycle(path: pathlib.Path) -> Step:
    """An exported step; see `closed`."""
    with path.open() as lines:
        records = [r for r in map(json.loads, lines) if "op" in r]
    return Step.from_records(closed(records))


def closed(records: list[dict]) -> list[dict]:
    """The records with all that lives across the step's end dying there.

    That only costs less, so a bound of it is one of the step. What is freed
    without having been touched is forgotten.
    """
    created = {key: op for op, r in enumerate(records) for key, _ in r["out"]}
    touched = created.keys() | {key for r in records for key, _ in r["in"]}
    result, late = [], []
    for op, record in enumerate(records):
        early = {key for key, at in created.items() if at > op}
        late += [key for key in record["free"] if key in early]
        gone = early | ({*record["free"]} - touched)
        result.append(
            {
                **record,
                "in": [use for use in record["in"] if use[0] not in early],
                "write": [k for k in record["write"] if k not in early],
                "over": [k for k in record.get("over", ()) if k not in early],
                "free": [k for k in record["free"] if k not in gone],
            }
        )
    result[-1]["free"] += late
    return result


def largest_op_bytes(path: str) -> int:
    """What the op with the most operands needs; lists go in pieces."""
    with open(path) as lines:
        records = [r for r in map(json.loads, lines) if "op" in r]
    lists = ("aten::_foreach", "aten::_fused")
    return max(
        sum(size for _, size in record["in"] + record["out"])
        + record.get("workspace", 0)
        for record in records
        if not record["op"].startswith(lists)
    )


def yardsticks(traces: list[str], gpu: str, budget: int) -> dict:
    """Means over the traces, equal ones calculated once.

    Raises:
        ValueError: One op alone needs more than the budget.
    """
    of_text: dict[bytes, tuple] = {}
    rows = []
    for path in map(pathlib.Path, traces):
        text = path.read_bytes()
        if text not in of_text:
            step = read_cycle(path)
            bytes_in, bytes_out = belady_bytes(step, budget)
            of_text[text] = (
                lower_bound_ns(step, budget, LINKS[gpu]) / 1e6,
                step.compute_ns / 1e6,
                step.peak_bytes / 1e9,
                step.ops,
                bytes_in / 1e9,
                bytes_out / 1e9,
            )
        rows.append(of_text[text])
    names = (
        "bound_ms",
        "trace_compute_ms",
        "trace_peak_gb",
        "trace_ops",
        "belady_in_gb",
        "belady_out_gb",
    )
    columns = zip(*rows, strict=True)
    return {
        name: sum(column) / len(rows)
        for name, column in zip(names, columns, strict=True)
    }


def main(largest_op_of: str = "", **arguments) -> dict:
    """One of the two questions."""
    if largest_op_of:
        return {"largest_op_bytes": largest_op_bytes(largest_op_of)}
    return yardsticks(**arguments)


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))
