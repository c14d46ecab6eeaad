"""What else a lease found, a sentence each."""

import itertools
from collections.abc import Iterator


def sentences(results: dict) -> Iterator[str]:
    """Of what there is.

    Args:
        results: Those of one GPU.
    """
    yield from _optimizers(results.get("optimizer_ops", []))
    yield from _pinning(results.get("pin", []))
    yield from _two(results.get("two", {}))
    yield from _deterministic(results)


def _optimizers(rows: list[dict]) -> Iterator[str]:
    for row in rows:
        bits = "the same bits" if row["are_bits_equal"] else "other bits"
        yield (
            f"Fused {row['optimizer']} of {row['elements'] / 1e6:.0f} M "
            f"{row['dtype']} elements, state on the CPU ({row['cpu_threads']} "
            f"threads) beside CUDA's: {bits}, {row['cpu_gb_s']:.0f} and "
            f"{row['cuda_gb_s']:.0f} GB/s."
        )


def _pinning(rows: list[dict]) -> Iterator[str]:
    names = {"none": "pinned at once", "populate": "populated, then pinned"}
    names |= {"touch": "written, then pinned"}
    for way, group in itertools.groupby(
        sorted(rows, key=lambda row: (row["pages_by"], row["threads"])),
        key=lambda row: row["pages_by"],
    ):
        speeds = ", ".join(
            f"{row['both_gb_s']:.1f} by {row['threads']}" for row in group
        )
        yield f"Host memory {names[way]}, GB/s by threads: {speeds}."


def _two(rows: dict[str, dict]) -> Iterator[str]:
    for name, group in itertools.groupby(
        rows.items(), key=lambda item: item[0].rpartition(" ")[0]
    ):
        told = [
            f"{row['ms']:.0f} ms" if "ms" in row else row["error"].split(":")[0]
            for _, row in group
        ]
        training = name.removeprefix("two/").replace("/", " ")
        yield f"Two processes at a time, {training} each: {', '.join(told)}."


def _deterministic(results: dict) -> Iterator[str]:
    sides = results.get("bits", {}).get("deterministic_llama", {})
    unstable = sum(
        len(run.get("unstable", ())) for run in sides.get("native", [])
    )
    for run in sides.get("here", [])[:1]:
        yield (
            "A Llama with deterministic algorithms: "
            f"{unstable} results that do not repeat natively, "
            f"{len(run.get('different', ()))} of {run.get('compared', 0)} that "
            "differ here."
        )
