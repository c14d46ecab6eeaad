"""What fails on a simulated cluster, and when: drawn by a seed."""

from __future__ import annotations

import random
from typing import NamedTuple

HOUR_S = 3600.0
PROCESS, CARD, MEMORY = "process", "card", "memory"


class Event(NamedTuple):
    """A failure.

    Attributes:
        at_s: When.
        card: Which one it happens on.
        kind: A process ends; or its card is lost, too; or a process ends and
            all that was kept in memory is damaged.
        repair_s: How long a lost card is away.
    """

    at_s: float
    card: int
    kind: str
    repair_s: float


class Kind(NamedTuple):
    """Of what sort the failures of a schedule are."""

    every_s: float  # the mean time between failures
    repair_s: float  # the mean time that a card is away
    cards: float  # so large a part of the failures lose a card
    memory: float = 0.02  # and so large a part all that is in memory


KINDS = {
    "processes fail, each 30 min": Kind(HOUR_S / 2, HOUR_S, 0.1),
    "half of them cards, each hour": Kind(HOUR_S, HOUR_S, 0.5),
    "cards fail, each hour, away for two": Kind(HOUR_S, 2 * HOUR_S, 0.98),
    "half of them cards, each 10 min": Kind(HOUR_S / 6, HOUR_S / 6, 0.5),
}


def draw(kind: Kind, seed: int, length_s: float, cards: int) -> list[Event]:
    """Failures by chance alone: each time until the next is exponential.

    Args:
        kind: Of what sort.
        seed: Equal ones draw equal schedules.
        length_s: How long the schedule is.
        cards: How many there are.
    """
    chance = random.Random(seed)
    events, at_s = [], 0.0
    while True:
        at_s += chance.expovariate(1 / kind.every_s)
        if at_s >= length_s:
            return events
        part = chance.random()
        what = (
            CARD
            if part < kind.cards
            else MEMORY
            if part < kind.cards + kind.memory
            else PROCESS
        )
        repair_s = chance.expovariate(1 / kind.repair_s)
        events.append(
            Event(
                at_s,
                chance.randrange(cards),
                what,
                repair_s if what == CARD else 0.0,
            )
        )
