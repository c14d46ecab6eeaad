"""What failed, what was done about it, and what it cost."""

import time
from typing import NamedTuple

from torch.distributed.elastic.metrics.api import MetricData, MetricHandler

from torch_chameleon.elastic._memory import Memory
from torch_chameleon.elastic._option import (
    FROM_CHECKPOINT,
    FROM_PARTNER,
    IN_PLACE,
    resharded,
)

AGENT = "torchelastic"  # the group of the agent's metrics
_FAILED, _WELL = (".failed", ".unhealthy"), ".healthy"


class Seen(NamedTuple):
    """Failures of a run."""

    options: list[str]  # what was done about each
    seconds: list[float]  # until somebody was back
    lost: int  # steps

    def with_those_of(self, other: "Seen") -> "Seen":
        """Those of two replicas.

        Args:
            other: What the other one has seen.
        """
        return Seen(
            self.options + other.options,
            self.seconds + other.seconds,
            self.lost + other.lost,
        )

    def line(self) -> str:
        """All of it in a sentence."""
        count = len(self.options)
        words = [_counted(count, "failure")]
        if count:
            words[0] += f" ({', '.join(self.options)})"
        words.append(f"{_counted(self.lost, 'step')} lost")
        if self.seconds:
            took = ", ".join(f"{each:.1f} s" for each in self.seconds)
            words.append(f"back after {took}")
        return f"elastic: {'; '.join(words)}"


class Left(NamedTuple):
    """What the workers of a life left, of how they came to be there."""

    back_at: float
    ranks: int
    fetches: int
    readings: int

    @classmethod
    def by(cls, memories: list[Memory]) -> "Left":
        """Reads ledgers.

        Args:
            memories: Of all local ranks.
        """
        ledgers = [each.ledger for each in memories]
        return cls(
            max(each.back_at for each in ledgers),
            max(ledgers, key=lambda each: each.back_at).ranks,
            max(each.fetches for each in ledgers),
            max(each.readings for each in ledgers),
        )

    def what_was_done(self, before: "Left") -> str:
        """How they came back whom an agent started again.

        Args:
            before: What those before them left.
        """
        if self.readings > before.readings:
            return FROM_CHECKPOINT
        if self.ranks < before.ranks:
            return resharded(self.ranks)
        return FROM_PARTNER if self.fetches > before.fetches else IN_PLACE


class Failures(MetricHandler):
    """Counts the failures that torch's elastic agent sees.

    The agent tells its metrics of each, when the workers are gone and before
    any is started again. What was lost is in the ledgers, by the workers.
    """

    def __init__(self, memories: list[Memory]):
        """Has seen none.

        Args:
            memories: Of all local ranks.
        """
        self._memories = memories
        self._options: list[str] = []
        self._times: list[float] = []  # of failures
        self._seconds: list[float] = []  # until somebody was back
        self._before = Left.by(memories)
        self._is_away = False  # nobody is back yet after the last one

    def emit(self, metric_data: MetricData) -> None:
        """See `MetricHandler`.

        Args:
            metric_data: One value.
        """
        name = metric_data.name
        if not name.startswith("workers."):
            return
        if name.endswith(_WELL):
            self._look()
        elif name.endswith(_FAILED):
            self._look()
            self._before, self._is_away = Left.by(self._memories), True
            self._options.append(IN_PLACE)
            self._times.append(time.monotonic())

    def chose(self, option: str) -> None:
        """Notes what is done about the last failure, if not the usual.

        Args:
            option: What.
        """
        if self._options:
            self._options[-1] = option

    def restart_s(self) -> float:
        """How long it took until workers were back, the last time; 0: never."""
        return self._seconds[-1] if self._seconds else 0

    def seen(self) -> Seen:
        """What there was, when the run is over."""
        self._look()
        lost = max(each.ledger.lost for each in self._memories)
        return Seen(self._options, self._seconds, lost)

    def _look(self) -> None:
        """Whether the workers are back after the last failure, and how."""
        left = Left.by(self._memories)
        if not self._is_away or left.back_at <= self._times[-1]:
            return
        self._is_away = False
        self._seconds.append(left.back_at - self._times[-1])
        if self._options[-1] == IN_PLACE:
            self._options[-1] = left.what_was_done(self._before)


def _counted(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
