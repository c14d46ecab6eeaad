"""Cards that fail and are repaired, and a training on them, on one clock."""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from failure_schedules import CARD, Event


class Cluster(ABC):
    """Plays a schedule; what a training does about it is its subclass's.

    A step counts when it is done: what is under way when something fails, or
    when ranks are other ones, is done again.
    """

    def __init__(self, cards: int, length_s: float) -> None:
        """All cards are there, and all have a rank.

        Args:
            cards: How many.
            length_s: How long is played.
        """
        self.cards = cards
        self.healthy = set(range(cards))
        self.now_s = 0.0
        self.taken: list[float] = []  # samples of each step
        self._length_s = length_s
        self._later: list[tuple[float, int, int]] = []  # cards that come back
        self._done_s = 0.0  # when the last step was done, or all were ready

    @abstractmethod
    def step(self) -> tuple[float, float]:
        """Samples, and seconds, of a step as things are."""

    @abstractmethod
    def failed(self, event: Event) -> None:
        """What is done about a failure; the card is not healthy if it is lost.

        Args:
            event: Of a card that was there.
        """

    @abstractmethod
    def came_back(self, card: int) -> None:
        """What is done about a card that can be used again.

        Args:
            card: Which.
        """

    def pause(self, seconds: float) -> None:
        """No step is done for so long, from now on.

        Args:
            seconds: How long.
        """
        self._done_s = self.now_s + seconds

    def back_after(self, card: int, seconds: float) -> None:
        """A card comes back later.

        Args:
            card: Which.
            seconds: From now on.
        """
        order = len(self._later)
        heapq.heappush(self._later, (self.now_s + seconds, order, card))

    def play(self, schedule: Sequence[Event]) -> float:
        """Plays a schedule to its end.

        Args:
            schedule: Failures in their order.

        Returns:
            Samples a second, on average.
        """
        for event in schedule:
            self._until(event.at_s)
            if event.card not in self.healthy:
                continue  # it is away
            if event.kind == CARD:
                self.healthy.remove(event.card)
                self.back_after(event.card, event.repair_s)
            self.failed(event)
        self._until(self._length_s)
        return sum(self.taken) / self._length_s

    def _until(self, at_s: float) -> None:
        while self._later and self._later[0][0] <= at_s:
            when, _, card = heapq.heappop(self._later)
            self._train(when)
            self.healthy.add(card)
            self.came_back(card)
        self._train(at_s)

    def _train(self, until_s: float) -> None:
        self.now_s = until_s
        if until_s <= self._done_s:
            return
        samples, seconds = self.step()
        count = math.floor((until_s - self._done_s) / seconds)
        self.taken += [samples] * count
        self._done_s += count * seconds


def compute_left(
    schedule: Sequence[Event], length_s: float, cards: int
) -> float:
    """Which part of the cards' time is left.

    Args:
        schedule: What fails.
        length_s: How long it is.
        cards: How many there are.
    """
    away_until = dict.fromkeys(range(cards), 0.0)
    lost_s = 0.0
    for event in schedule:
        if event.kind == CARD and event.at_s >= away_until[event.card]:
            end_s = event.at_s + event.repair_s
            away_until[event.card] = end_s
            lost_s += min(end_s, length_s) - event.at_s
    return 1 - lost_s / (cards * length_s)
