"""What was measured says how far modelled times can be trusted.

    python measured_trust.py

writes the `measured` rows of `plan/trust.json`: modelled over measured, for
each card of `tests/benchmarks/results` and each kind of training.
"""

from __future__ import annotations

import json
import math
import pathlib
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator

from training_table import RESULTS, profile_of

ROOT = pathlib.Path(__file__).resolve().parents[3]
FILE = ROOT / "python" / "torch_chameleon" / "plan" / "trust.json"
SOURCE = "tests/benchmarks/results/{}, on {}: {}"
# A kind of trust.json; None: it has none.
KINDS = {
    "tiny": "small",
    "llama_1.3b": "transformer",
    "llama_7b": "transformer",
    "llama_14b": "transformer",
    "llama_20b": "transformer",
    "lora_8b": "transformer",
    "bert_large": "transformer",
    "vit_l": "transformer",
    "resnet50": "dense_cnn_channels_first",
    "resnet50_channels_last": "dense_cnn_channels_last",
    "resnet152": "dense_cnn_channels_first",
    "moe_8x16": None,
}


def spread_of(ratios: Iterable[float]) -> tuple[float, float]:
    """The geometric mean and the geometric standard deviation."""
    logarithms = [math.log(ratio) for ratio in ratios]
    return (
        math.exp(statistics.mean(logarithms)),
        math.exp(statistics.stdev(logarithms)),
    )


def row_of(kind: str, gpu: str | None, ratios: list[float]) -> dict:
    """A row of trust.json without its source; one ratio has no spread."""
    row = {"kind": kind, "gpu": gpu, "count": len(ratios)}
    if len(ratios) == 1:
        return {**row, "ratio": round(ratios[0], 2)}
    ratio, spread = spread_of(ratios)
    return {**row, "ratio": round(ratio, 2), "spread": round(spread, 2)}


def rows_of(path: pathlib.Path) -> Iterator[dict]:
    """The rows of a card."""
    results = json.loads(path.read_text())
    if "points" not in results or not results["machine"]["is_gpu"]:
        return  # of another benchmark, or of a machine without a GPU
    card = results["machine"]["gpu"]
    gpu = profile_of(card)
    if gpu is None:
        return  # nothing is modelled for it
    ratios, trainings = defaultdict(list), defaultdict(dict)
    for key, point in results["points"].items():
        training = key.split()[0]
        kind = KINDS[training]
        if kind is not None and "ms" in point and point.get("modelled_ms"):
            ratios[kind].append(point["modelled_ms"] / point["ms"])
            trainings[kind][training] = None
    for kind, found in ratios.items():
        names = ", ".join(trainings[kind])
        source = SOURCE.format(path.name, card, names)
        yield {**row_of(kind, gpu, found), "source": source}


def measured() -> list[dict]:
    """The rows of all cards."""
    return [
        row for path in sorted(RESULTS.glob("*.json")) for row in rows_of(path)
    ]


def written(data: dict) -> str:
    """The text of trust.json: a row is a line."""
    return (
        json.dumps(data, indent=1).replace("\n   ", " ").replace("\n  }", " }")
        + "\n"
    )


def main() -> None:
    """The command."""
    data = json.loads(FILE.read_text())
    FILE.write_text(written({**data, "measured": measured()}))


if __name__ == "__main__":
    main()
