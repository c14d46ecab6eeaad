"""Failures on purpose: seeded schedules, for tests and for users.

CHAMELEON_CHAOS in the environment of the launcher names failures, in the order
in which they come; each needs the one before to have been survived. Scripts
stay as they are: `State` makes them happen.

Examples:
    >>> from torch_chameleon.elastic import chaos
    >>> failures = chaos.schedule(seed=7, failures=3, ranks=2, steps=10)
    >>> chaos.parse(chaos.text(failures)) == failures
    True
    >>> chaos.parse("kill:1:3:backward")
    [Failure(kind='kill', rank=1, step=3, phase='backward')]
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

__all__ = [
    "KINDS",
    "PHASES",
    "VARIABLE",
    "Failure",
    "parse",
    "schedule",
    "text",
]

VARIABLE = "CHAMELEON_CHAOS"
KINDS = {
    "kill": "SIGKILL of the rank",
    "stop": "SIGSTOP of the rank, which then only times out",
    "error": "an error is raised in the rank, as a device raises it",
    "full": "the rank fills its device and the host until there is no room",
    "sibling": "SIGKILL of another child of the launcher",
    "flip": "a bit of the rank's newest generation is flipped, then SIGKILL",
    "lose": "all of the rank's generations are gone, then SIGKILL",
    "tear": "the newest generation's commit word is removed, then SIGKILL",
}
PHASES = ("forward", "backward", "optimizer", "commit")
_ON_MIRROR = ("flip", "tear")
# Over soon, each after the other: "stop" lasts until some time-out, and "lose"
# needs a checkpoint.
_QUICK = tuple(kind for kind in KINDS if kind not in ("stop", "lose"))


class Failure(NamedTuple):
    """What happens, to whom, and when.

    Attributes:
        kind: One of KINDS.
        rank: The rank that does it. Where ranks are fewer by now, it is the
            remainder; with `--policy heal` it is the replica.
        step: While so many steps are committed.
        phase: In the middle of which of PHASES.
    """

    kind: str
    rank: int
    step: int
    phase: str


def schedule(
    seed: int,
    failures: int,
    ranks: int,
    steps: int,
    kinds: Sequence[str] = _QUICK,
) -> list[Failure]:
    """Draws failures.

    Args:
        seed: The same one draws the same.
        failures: How many.
        ranks: Of how many ranks.
        steps: Within how many steps.
        kinds: Which may be drawn. Default: all but "stop" and "lose".

    Raises:
        ValueError: There are more failures than steps, no ranks, or an
            unknown kind.
    """
    if not 0 <= failures <= steps:
        raise ValueError(
            f"chaos.schedule: failures = {failures} must be within 0 and steps "
            f"= {steps}"
        )
    if ranks < 1:
        raise ValueError(f"chaos.schedule: ranks = {ranks} must be at least 1")
    draws = random.Random(seed)
    drawn = []
    for step in sorted(draws.sample(range(steps), failures)):
        kind = draws.choice(kinds)
        # Later another rank may have begun to write in the place of the one
        # before, and none would be left that all have.
        phases = PHASES[:2] if kind in _ON_MIRROR else PHASES
        rank, phase = draws.randrange(ranks), draws.choice(phases)
        drawn.append(_checked(kind, rank, step, phase))
    return drawn


def text(failures: Sequence[Failure]) -> str:
    """What CHAMELEON_CHAOS says.

    Args:
        failures: In their order.
    """
    return ",".join(":".join(map(str, each)) for each in failures)


def parse(said: str) -> list[Failure]:
    """Failures from what CHAMELEON_CHAOS says.

    Args:
        said: Such as "kill:1:3:backward,error:0:5:commit".

    Raises:
        ValueError: It says something else.
    """
    failures = []
    for part in filter(None, said.split(",")):
        words = part.split(":")
        try:
            kind, rank, step, phase = words
            failures.append(_checked(kind, int(rank), int(step), phase))
        except ValueError as error:
            raise ValueError(
                f"{VARIABLE}: {part!a} is not KIND:RANK:STEP:PHASE, with a "
                f"kind of {', '.join(KINDS)}, a phase of {', '.join(PHASES)}, "
                "and numbers from 0"
            ) from error
    return failures


def _checked(kind: str, rank: int, step: int, phase: str) -> Failure:
    if kind not in KINDS or phase not in PHASES or min(rank, step) < 0:
        raise ValueError(
            f"chaos: {kind!a} of rank {rank} at step {step} in {phase!a} is no "
            "failure"
        )
    return Failure(kind, rank, step, phase)
