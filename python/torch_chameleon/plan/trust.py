"""How far modelled times can be trusted: `trust.json`, and what it says.

A ratio is modelled over measured time, of a step. Its spread is the factor
within which about two thirds of the measurements lie (their geometric standard
deviation). Published figures are of many cards, or of the one that is named;
measured ones are of one card, which `tests/benchmarks` ran on.
"""

import functools
import json
import pathlib
from typing import Any

_FILE = pathlib.Path(__file__).with_name("trust.json")

Row = dict[str, Any]


@functools.cache
def data() -> dict[str, Any]:
    """The whole file."""
    found: dict[str, Any] = json.loads(_FILE.read_text())
    return found


def trust(kind: str | None, gpu: str) -> dict[str, Any]:
    """How far times can be trusted.

    Args:
        kind: Of the training, as `kind_of` says it.
        gpu: The name of the card's profile.

    Returns:
        The kind, the row of published figures, the card's own row (measured,
        or else published; None: there is none), and all of it as a sentence
        without its subject.
    """
    on_any = _row("published", kind, None)
    on_card = _row("measured", kind, gpu) or _row("published", kind, gpu)
    sentence = "are modelled; this training is of a kind that was not measured"
    if on_any is not None:
        sentence = (
            f"are modelled; for {data()['kinds'][kind]} they were "
            f"{ratio(on_any)} of what was measured ({basis(on_any)})"
        )
    if on_card is not None:
        sentence += f"; on this card {ratio(on_card)} ({basis(on_card)})"
    return {
        "kind": kind,
        "on_any_card": on_any,
        "on_this_card": on_card,
        "sentence": sentence,
    }


def _row(source: str, kind: str | None, gpu: str | None) -> Row | None:
    for row in data()[source]:
        if (row["kind"], row["gpu"]) == (kind, gpu):
            found: Row = row
            return found
    return None


def ratio(row: Row) -> str:
    """Modelled over measured, as text: 0.86, or 0.15 to 0.35.

    Args:
        row: Of `trust.json`.
    """
    if "ratio" in row:
        return f"{row['ratio']:.2f}"
    return f"{row['least']:.2f} to {row['most']:.2f}"


def basis(row: Row) -> str:
    """What a ratio is made of: 38 published figures, spread 1.18.

    Args:
        row: Of `trust.json`.
    """
    is_measured = row in data()["measured"]
    count = row.get("count")
    parts = [
        ("measured" if is_measured else "published measurements")
        if count is None
        else f"{count} {'measured' if is_measured else 'published'} figures"
    ]
    if row.get("of"):
        parts[0] += f" of {row['of']}"
    if row.get("spread"):
        parts.append(f"spread {row['spread']:.2f}")
    return ", ".join(parts)
