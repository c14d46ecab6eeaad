"""Our launcher on a simulated cluster, with one of its policies."""

from __future__ import annotations

import argparse
import math
from typing import NamedTuple

from cluster import Cluster
from failure_schedules import MEMORY, Event, Kind
from torch_chameleon.elastic._failure import Failure
from torch_chameleon.elastic._figures import Figures
from torch_chameleon.elastic._option import FROM_CHECKPOINT
from torch_chameleon.elastic._policies import BUILT
from torch_chameleon.elastic._situation import Situation

SAMPLES = 512  # a step, of all ranks
START_S = 30.0  # a round number: until processes have started and met
PROBE_S = 1.0  # and another one: until a driver has answered
CHECKPOINT_STEPS = 100
COMMITS = 0.01  # of a step at most, or each so many-th step's state is kept
LINK, DISK = 55e9, 1e9  # bytes/s of a card: its host link; a round number


class Step(NamedTuple):
    """What one takes on so many ranks; see simulated_steps.py."""

    step_s: float
    slowdown: float  # by the planner's model, of a rank less
    kept_bytes: float
    longer: float = 0
    peak_bytes: float = 0


class Restarting(Cluster):
    """A launch after the other: what the next one is like says the policy.

    A launch that lacks a card fails when it has started. A card that a policy
    gave up comes back at its repair, or after `--repair-seconds` where nothing
    is wrong with it. All ranks are started again for one that came back where
    that pays until the next failure, by the mean time between them.
    """

    def __init__(
        self,
        policy: str,
        steps: dict[int, Step],
        kind: Kind,
        length_s: float,
        *,
        fewer: bool = False,
    ) -> None:
        """All cards have a rank.

        Args:
            policy: One of those that are built.
            steps: What they take, by the number of ranks.
            kind: What the user knows of failures: their mean times.
            length_s: How long is played.
            fewer: Whether a step may have fewer samples.
        """
        self._steps, self._kind = steps, kind
        cards = max(steps)
        super().__init__(cards, length_s)
        self._policy = BUILT[policy]()
        self._options = argparse.Namespace(
            nproc_per_node=str(cards),
            shares=cards,
            repair_seconds=kind.repair_s,
            lost_devices=False,
            allow_fewer_samples=fewer,
        )
        self._used = list(range(cards))
        row = steps[cards]
        self._every = math.ceil(row.kept_bytes / LINK / COMMITS / row.step_s)
        self._whole = 0  # steps, at the least, that memory has
        self._is_waiting = False  # for cards that are lost
        self.choices: list[str] = []

    def step(self) -> tuple[float, float]:
        """See `Cluster`."""
        return self._step(len(self._used), self._options.shares)

    def failed(self, event: Event) -> None:
        """See `Cluster`."""
        if event.card not in self._used or self._is_waiting:
            return
        rank, reached = self._used.index(event.card), len(self.taken)
        has_memory = event.kind != MEMORY
        # The newest generation may not be whole yet; the one before is.
        newest = (reached - 1) // self._every * self._every
        kept = max(newest, self._whole) if has_memory else None
        saved = reached - reached % CHECKPOINT_STEPS
        now = Situation(
            len(self._used), reached, kept, self._figures(float(saved))
        )
        spent_s = PROBE_S
        while True:
            done = self._policy.next_launch(
                self._options,
                Failure(rank, now, [], START_S, event.card not in self.healthy),
            )
            assert done is not None
            is_smaller = int(self._options.nproc_per_node) < now.ranks
            if is_smaller or event.card in self.healthy:
                break
            if spent_s > PROBE_S:  # it says so again
                self._is_waiting = True
                break
            spent_s += START_S  # a launch in vain
        self.choices.append(done)
        if is_smaller:
            self._used.remove(event.card)
            if event.card in self.healthy:
                self._give_up(event.card)
        from_disk = done == FROM_CHECKPOINT or kept is None
        self._whole = saved if from_disk else int(kept or 0)
        del self.taken[self._whole :]
        self._launch(from_disk, spent_s)

    def came_back(self, card: int) -> None:
        """See `Cluster`."""
        if self._is_waiting:
            if self.healthy.issuperset(self._used):
                self._is_waiting = False
                self._launch(self._is_from_disk)
            return
        able = sorted(self.healthy)  # those in use, and more
        shares = max(self._options.shares, len(able))
        now, then = (
            samples / seconds
            for samples, seconds in (self.step(), self._step(len(able), shares))
        )
        if self._kind.every_s * (1 - now / then) <= self._back_s(False):
            return
        self._used = able
        self._options.nproc_per_node = str(len(able))
        self._options.shares = shares
        self._whole = len(self.taken)  # it ends when the last step is whole
        self._launch(False)

    def _launch(self, from_disk: bool, spent_s: float = 0) -> None:
        self._is_from_disk = from_disk
        self.pause(
            math.inf if self._is_waiting else spent_s + self._back_s(from_disk)
        )

    def _give_up(self, card: int) -> None:
        """It is seen to, though nothing is wrong with it."""
        self.healthy.remove(card)
        self.back_after(card, self._options.repair_seconds)

    def _back_s(self, from_disk: bool) -> float:
        kept = self._steps[len(self._used)].kept_bytes
        return START_S + kept / (DISK if from_disk else LINK)

    def _step(self, ranks: int, shares: int) -> tuple[float, float]:
        """Samples and seconds of a step, whose commit copies what is kept."""
        step_s = self._steps[shares].step_s
        for each in range(ranks + 1, shares + 1):  # sharded state is larger
            step_s *= max(self._steps[each].longer, 1)
        commit_s = self._steps[ranks].kept_bytes / LINK
        return SAMPLES * ranks / shares, step_s + commit_s / self._every

    def _figures(self, saved: float) -> Figures:
        """What ranks have measured, and their devices' model says."""
        row = self._steps[len(self._used)]
        return Figures(
            step_s=self.step()[1],
            slowdown=row.slowdown,
            longer=row.longer,
            commit_s=row.kept_bytes / LINK,
            restore_s=row.kept_bytes / LINK,
            start_s=START_S,
            checkpoint_steps=saved,
            checkpoint_s=row.kept_bytes / DISK,
        )
