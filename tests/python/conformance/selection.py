"""Which cases the default run takes, and how a full run is split.

Both go by a hash of the case's name: fixed, and fair.

CONFORMANCE_PART=2/6    of a full run: the second of six parts
"""

import os
import zlib


def hashed(*names):
    return zlib.crc32("/".join(map(str, names)).encode())


def choose(items, count, *names):
    """`count` of the items, by a hash of `names`."""
    ranked = sorted(items, key=lambda item: hashed(*names, item))
    return [item for item in items if item in ranked[:count]]


def part():
    """(index, count) of the part that this process runs."""
    index, _, count = os.environ.get("CONFORMANCE_PART", "1/1").partition("/")
    return int(index) - 1, int(count)


def in_part(name):
    index, count = part()
    return hashed("part", name) % count == index
