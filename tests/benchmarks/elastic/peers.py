"""Trainings whose survivors go on without being started again: yardsticks.

They are *like* the systems that they are named after, and generous to them: a
new group costs every one `REGROUP_S`, no state is copied, nothing waits for a
network, layers are all alike, and what does not fit is not asked.
"""

from __future__ import annotations

import heapq
import math

from cluster import Cluster
from failure_schedules import CARD, Event
from restarting import SAMPLES, START_S

REGROUP_S = 5.0  # a round number
PIPELINES, STAGES = 8, 4
MICRO_BATCHES = 256  # a step, of all pipelines: of two samples each


class Peers(Cluster):
    """Whoever fails is missed until it is back, and nobody else ends."""

    def failed(self, event: Event) -> None:
        """See `Cluster`."""
        if event.kind != CARD:  # a process that comes back
            self.healthy.remove(event.card)
            self.back_after(event.card, START_S)
        self.pause(REGROUP_S)

    def came_back(self, card: int) -> None:
        """See `Cluster`."""
        self.pause(REGROUP_S)


class Healing(Peers):
    """Like torchft: replicas, each of a card; a step has the samples of those
    that are there, and who comes back gets its state from another one.
    """

    def __init__(self, step_s: float, cards: int, length_s: float) -> None:
        """All cards are there.

        Args:
            step_s: What a step of theirs takes.
            cards: How many there are.
            length_s: How long is played.
        """
        super().__init__(cards, length_s)
        self._step_s = step_s

    def step(self) -> tuple[float, float]:
        """See `Cluster`."""
        return SAMPLES * len(self.healthy) / self.cards, self._step_s


class Pipelines(Peers):
    """Eight pipelines of four stages, whose layers all take equally long."""

    def __init__(self, layers: int, step_s: float, length_s: float) -> None:
        """All cards are there.

        Args:
            layers: Of the model.
            step_s: What a step takes on so many cards where none ever waits.
            length_s: How long is played.
        """
        super().__init__(PIPELINES * STAGES, length_s)
        self.layers = layers
        self.layer_s = step_s * self.cards / MICRO_BATCHES / layers

    def there(self) -> list[list[bool]]:
        """Of each pipeline, whose stages' cards are there."""
        return [
            [STAGES * number + stage in self.healthy for stage in range(STAGES)]
            for number in range(PIPELINES)
        ]


class Oobleck(Pipelines):
    """Like Oobleck (SOSP'23): a pipeline that lost a card goes on with one
    stage less, from a template made before, and micro-batches are divided so
    that all pipelines end together. It costs `(b + p - 1) * ceil(layers / p)`
    times a layer's time: b micro-batches through p stages.
    """

    def step(self) -> tuple[float, float]:
        """See `Cluster`."""
        ends = [
            (math.ceil(self.layers / stages) * stages, stages)
            for stages in map(sum, self.there())
            if stages
        ]  # each after its first micro-batch
        heapq.heapify(ends)
        last = 0
        for _ in range(MICRO_BATCHES):
            end, stages = ends[0]
            last = max(last, end)
            heapq.heapreplace(
                ends, (end + math.ceil(self.layers / stages), stages)
            )
        return SAMPLES, last * self.layer_s


class ReCycle(Pipelines):
    """Like ReCycle (SOSP'24): micro-batches of a stage that failed go to the
    same stage of other pipelines, in their bubbles first. At its best: a step
    takes as many slots as the stage with the most failures needs, and at least
    those of a pipeline that lacks nothing, `M + S - 1`.
    """

    def step(self) -> tuple[float, float]:
        """See `Cluster`."""
        each = MICRO_BATCHES // PIPELINES
        left = [sum(stage) for stage in zip(*self.there(), strict=True)]
        if not all(left):
            return 0, self.layer_s * self.layers
        slots = max(
            each + STAGES - 1, *(math.ceil(MICRO_BATCHES / n) for n in left)
        )
        return SAMPLES, slots * math.ceil(self.layers / STAGES) * self.layer_s
