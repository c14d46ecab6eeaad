"""Which cases the default run takes, and how a run is split.

Both go by a hash of the case's name: fixed, and fair.

CONFORMANCE_PART=2/6    runs the second of six parts
CONFORMANCE_SAMPLES=3   at most so many samples of a case, no reference inputs
"""

import itertools
import os
import zlib


def hashed(*names):
    return zlib.crc32("/".join(map(str, names)).encode())


def choose(items, count, *names):
    """`count` of the items, by a hash of `names`."""
    ranked = sorted(items, key=lambda item: hashed(*names, item))
    chosen = set(ranked[:count])
    return [item for item in items if item in chosen]


def few(actions, count, *names):
    """`count` of the first few actions."""
    early = list(itertools.islice(actions, 4 * count))
    chosen = choose(range(len(early)), count, *names)
    return [early[i] for i in chosen]


def most_samples():
    """The most samples of a case; None: all."""
    samples = os.environ.get("CONFORMANCE_SAMPLES")
    return int(samples) if samples else None


def part():
    """(index, count) of the part that this process runs."""
    index, _, count = os.environ.get("CONFORMANCE_PART", "1/1").partition("/")
    return int(index) - 1, int(count)


def in_part(name):
    index, count = part()
    return hashed("part", name) % count == index
