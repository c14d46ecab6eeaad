"""Memory a rank, and bits, of each way to train on several ranks.

On the CPU, with gloo: the trainings of tests/python/distributed, natively, with
all in memory and with a third of what that takes. Writes
results/several_ranks.md.

Usage: python tests/benchmarks/several_ranks.py [--worlds 2 4]
"""

import argparse
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
PAGE = HERE / "results" / "several_ranks.md"
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "python" / "distributed")]

import ranks  # noqa: E402

WAYS = {
    "ddp_plain": "`DistributedDataParallel`",
    "ddp_checkpointed": "the same, activations checkpointed",
    "fsdp2_plain": "`fully_shard` (FSDP2)",
    "fsdp2_keep_gathered": "the same, `reshard_after_forward=False`",
    "fsdp2_bf16": "the same, mixed precision",
    "tensor_parallel": "tensor parallelism (DTensor)",
    "pipeline_1f1b": "pipeline, 1F1B",
}
HEAD = """# Several ranks, on the CPU

Made by `tests/benchmarks/several_ranks.py`: 3 steps of a small model
(four blocks of width 64, AdamW) with gloo. *Peak*: the most memory that a rank
took with all of it at hand. *Budget*: a third of that, or what the largest op
needs. *Evictions*: of all ranks. *Bits*: losses, parameters and optimizer's
state against native gloo.

| way | ranks | peak a rank, KiB | budget, KiB | evictions | bits |
|---|---:|---:|---:|---:|---|
"""


def rows(world: int) -> list[str]:
    """A row for each way to train."""
    found = {}
    for device in ("cpu", "chameleon"):
        with tempfile.TemporaryDirectory() as folder:
            found[device] = ranks.launch(folder, device, world, list(WAYS))
    lines = []
    for way, label in WAYS.items():
        ours = [each[way] for each in found["chameleon"]]
        same = all(
            result["digest"] == native[way]["digest"]
            for native, each in zip(found["cpu"], ours, strict=True)
            for result in each.values()
        )
        figures = [each["3"]["figures"] for each in ours]
        peak = max(each["peak_bytes"] for each in figures) >> 10
        budget = max(each["budget_bytes"] for each in figures) >> 10
        evictions = sum(each["evictions"] for each in figures)
        lines.append(
            f"| {label} | {world} | {peak:,} | {budget:,} | {evictions:,} | "
            f"{'equal' if same else '**differ**'} |"
        )
    return lines


def main() -> None:
    """Measures and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", nargs="+", type=int, default=[2, 4])
    worlds = parser.parse_args().worlds
    lines = [row for world in worlds for row in rows(world)]
    PAGE.write_text(HEAD + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
