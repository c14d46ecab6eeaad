"""Reads the trace of a step."""

import json
from collections.abc import Iterator
from typing import Any


def ops_of(trace: str) -> Iterator[dict[str, Any]]:
    """The ops of a traced step, in order.

    Args:
        trace: A file that `export_trace` wrote.
    """
    with open(trace) as lines:
        for record in map(json.loads, lines):
            if "op" in record:
                yield record
