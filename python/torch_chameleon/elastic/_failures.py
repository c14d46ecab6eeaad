"""What failed, what was done about it, and what it cost."""

import time
from typing import NamedTuple

from torch.distributed.elastic.metrics.api import MetricData, MetricHandler

from torch_chameleon.elastic._memory import Memory
from torch_chameleon.elastic._option import FROM_PARTNER, IN_PLACE

AGENT = "torchelastic"  # the group of the agent's metrics
_FAILED = (".failed", ".unhealthy")


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
        self._fetches = 0  # that were seen

    def emit(self, metric_data: MetricData) -> None:
        """See `MetricHandler`.

        Args:
            metric_data: One value.
        """
        name = metric_data.name
        if name.startswith("workers.") and name.endswith(_FAILED):
            self._look()
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
        """When the workers were back after the last failure."""
        back_at = max(each.ledger.back_at for each in self._memories)
        fetches = max(each.ledger.fetches for each in self._memories)
        if self._times and back_at > self._times[-1]:
            self._seconds.append(back_at - self._times[-1])
            if fetches > self._fetches:
                self._options[-1] = FROM_PARTNER
        self._fetches = fetches


def _counted(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
