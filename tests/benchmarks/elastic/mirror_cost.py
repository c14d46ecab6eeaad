"""What keeping every step costs, on the simulated H200: all modelled.

    python tests/benchmarks/elastic/mirror_cost.py [--write]

Each point is a process of its own: a training at full size whose steps have
settled, then the same with a commit after each step, as `elastic.State` does
it: parameters, buffers and the optimizer's state go to two generations in
turn, and each commit waits for the one before. There is no keeper: a simulated
device has no bytes, and the host's part costs no time.
"""

import argparse
import gc
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
BENCHMARKS = HERE.parent
sys.path[:0] = [str(BENCHMARKS / "policy"), str(BENCHMARKS)]

from child import figures  # noqa: E402

WORKLOADS = ("llama_1.3b_fused", "gpt2_xl", "lora_7b")
KS = (1.0, 2.0, 4.0)
MIRRORED_STEPS, SETTLED_STEPS = 24, 8
FIRST_ADDRESS = 1 << 44  # of memory that is not there
PAGE = HERE / "MIRROR.md"
TEXT = """# What keeping every step costs

`python tests/benchmarks/elastic/mirror_cost.py --write` wrote this page. All is
modelled: trainings at full size on the simulated H200, in bfloat16, with AdamW,
recomputing where that pays, within their peak over k. Once their steps have
settled each is followed by a commit, as `elastic.State` does it: parameters,
buffers and the optimizer's state go to two generations in turn, and the next
commit waits for that. The host's part costs no time here, but for this: where
time is modelled no thread has time of its own, so while bytes leave the host
waits for each op, and 3 us pass before the next one. In a step of 1.3B these
are some 4 ms, which a card would not have. *Planned* is what the plan of the
step says that commits cost (`modelled_mirror_ns`).

*Link* is what all that is mirrored or swapped out would take to leave HBM, if
the link never rested. Where it is longer than a step without commits,
`--mirror-steps` is what helps; less leaves where state is on the host already.
Frozen weights are kept, and are copied into each generation only once.

"""


def point(workload: str, budget: int, k: float) -> dict:
    """Means of settled steps, without commits and with them."""
    import torch
    from point import MOST_WARM_UP, Steps, is_comparing, is_steady, simulate
    from torch_chameleon import _C, profiler
    from workloads import WORKLOADS as MADE

    gc.disable()
    simulate("h200", budget, "joint")
    torch.manual_seed(0)
    step = MADE[workload]()
    run = Steps(step)
    rows: list[dict] = []
    while len(rows) < MOST_WARM_UP + 16 and (
        is_comparing(len(rows)) or not is_steady([row["ms"] for row in rows])
    ):
        rows.append(run())

    found = gc.get_objects()
    optimizers = [x for x in found if isinstance(x, torch.optim.Optimizer)]
    modules = [x for x in found if isinstance(x, torch.nn.Module)]
    del found
    kept = {}
    for module in modules:
        for tensor in (*module.parameters(), *module.buffers()):
            kept[tensor.data_ptr()] = tensor.detach()
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for tensor in state.values():
                if tensor.device.type == "chameleon":
                    kept[tensor.data_ptr()] = tensor
    tensors = list(kept.values())
    addresses, at = [], FIRST_ADDRESS
    for tensor in tensors:
        addresses.append(at)
        at += tensor.nbytes
    size = at - FIRST_ADDRESS
    values = [[(0, 0)] * len(tensors), [(0, 0)] * len(tensors)]

    def finish() -> None:  # as Generations.wait()
        _C.finish_awaited_by_mirror()
        _C.finish_mirror()

    def committed() -> None:
        step()
        finish()
        values.reverse()
        values[0] = [
            _C.mirror(tensor, address + size * (len(mirrored) % 2), had)
            for tensor, address, had in zip(
                tensors, addresses, values[0], strict=True
            )
        ]

    mirrored: list[dict] = []
    with_commits = Steps(committed)
    while len(mirrored) < MIRRORED_STEPS:
        mirrored.append(with_commits())
    finish()

    def mean(rows: list[dict], key: str, last: int) -> float:
        return sum(row[key] for row in rows[-last:]) / last

    plan = profiler.last_step()["plan"]
    out_bytes_per_s = _C.gpu_profile("h200")["link_out_bytes_per_s"]
    leaving = mean(mirrored, "bytes_out", SETTLED_STEPS) + mean(
        mirrored, "mirrored_bytes", SETTLED_STEPS
    )
    return {
        "ms": mean(rows, "ms", 3),
        "out_gb": mean(rows, "bytes_out", 3) / 1e9,
        "peak_bytes": max(row["peak_resident_bytes"] for row in rows),
        "mirrored_ms": mean(mirrored, "ms", SETTLED_STEPS),
        "mirrored_out_gb": mean(mirrored, "bytes_out", SETTLED_STEPS) / 1e9,
        "mirrored_gb": mean(mirrored, "mirrored_bytes", SETTLED_STEPS) / 1e9,
        "kept_gb": size / 1e9,
        "planned_ms": plan["modelled_mirror_ns"] / 1e6 if plan else 0,
        "link_ms": leaving / out_bytes_per_s * 1e3,
        "steps_ms": [round(row["ms"], 2) for row in mirrored],
    }


def table(rows: dict[tuple[str, float], dict]) -> str:
    """Markdown, one line a point."""
    lines = [
        "| training | k | ms a step | with commits | more | planned | "
        "link, ms | GB kept | GB mirrored | GB swapped out |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for (workload, k), row in rows.items():
        if "error" in row:
            lines.append(f"| `{workload}` | {k:g} | {row['error']} |||||||||")
            continue
        more = row["mirrored_ms"] / row["ms"] - 1
        lines.append(
            f"| `{workload}` | {k:g} | {row['ms']:.1f} | "
            f"{row['mirrored_ms']:.1f} | {100 * more:.1f} % | "
            f"{100 * row['planned_ms'] / row['ms']:.1f} % | "
            f"{row['link_ms']:.1f} | "
            f"{row['kept_gb']:.2f} | {row['mirrored_gb']:.2f} | "
            f"{row['mirrored_out_gb']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs all points, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into MIRROR.md")
    parser.add_argument("--workload", nargs="*", default=WORKLOADS)
    parser.add_argument("--k", nargs="*", type=float, default=KS)
    options = parser.parse_args()
    rows: dict[tuple[str, float], dict] = {}
    repeats = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    for workload in options.workload:
        peak = 0
        for k in sorted({1.0, *options.k}):
            budget = int(peak / k) if k > 1 else 2 << 40
            row = figures(
                pathlib.Path(__file__).resolve(),
                {"workload": workload, "budget": budget, "k": k},
                repeats,
            )
            peak = peak or row.get("peak_bytes", 0)
            rows[workload, k] = row
            print(workload, k, row, flush=True)
    text = table(rows)
    print(text)
    if options.write:
        PAGE.write_text(TEXT + text)


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        print(json.dumps(point(**json.loads(sys.argv[1]))))
    else:
        main()
