"""The environment variables of the package; a misspelt one is named.

A setting that nobody reads is a training in the wrong budget, without a word.
"""

import multiprocessing
import os
import warnings
from collections.abc import Iterable

from torch_chameleon import _C

_PREFIX = "CHAMELEON"
# Beside the options. The build and the tests read those from BUILD_DIR on.
_OTHERS = (
    "CHAMELEON_AS_CUDA",
    "CHAMELEON_AUTOLOAD",
    "CHAMELEON_CHAOS",
    "CHAMELEON_CHECKPOINT",
    "CHAMELEON_CHECKPOINT_STEPS",
    "CHAMELEON_KEEPER",
    "CHAMELEON_PARTNER",
    "CHAMELEON_REPAIR_SECONDS",
    "CHAMELEON_REPLICAS_MEET",
    "CHAMELEON_REPLICA_NUMBER",
    "CHAMELEON_SHARES",
    "CHAMELEON_BUILD_DIR",
    "CHAMELEON_EMULATED",
    "CHAMELEON_FUZZ",
    "CHAMELEON_TESTING",
    "CHAMELEON_TEST_",
)
_ALIKE = 0.6  # of 1, as difflib counts


def names() -> list[str]:
    """All variables that are read; one that ends in "_" stands for many."""
    return [*(spec["environment"] for spec in _C.option_specs()), *_OTHERS]


def misspelt(given: Iterable[str]) -> dict[str, str]:
    """Variables that nobody reads, each with the one that it resembles.

    One that resembles none may be another program's, and is left out.
    """
    known = names()
    whole = [name for name in known if not name.endswith("_")]
    several = tuple(name for name in known if name.endswith("_"))
    found = {}
    for name in given:
        upper = name.upper()
        if (
            not upper.startswith(_PREFIX)
            or name in whole
            or name.startswith(several)
        ):
            continue
        nearest = _nearest(upper, whole)
        if nearest is not None:
            found[name] = nearest
    return found


def _nearest(upper: str, whole: list[str]) -> str | None:
    import difflib  # where it is needed at all

    def key(name: str) -> str:
        return name.removeprefix(_PREFIX).strip("_")

    def likeness(name: str) -> float:
        ours, given = key(name), key(upper)
        if given and given in ours.split("_"):
            return 1.0  # "GPU" is "SIMULATED_GPU"
        return difflib.SequenceMatcher(None, given, ours).ratio()

    best = max(whole, key=likeness)
    return best if likeness(best) >= _ALIKE else None


def warn_of_misspelt() -> None:
    """One warning a variable, in a program but not in its workers."""
    if multiprocessing.parent_process() is not None:
        return
    for name, nearest in misspelt(sorted(os.environ)).items():
        warnings.warn(
            f"chameleon: nothing reads the environment variable {name!a}; did "
            f"you mean {nearest}?",
            stacklevel=3,
        )
