"""A way to go on after a failure, and what it costs."""

from typing import NamedTuple

IN_PLACE = "in place"
FROM_CHECKPOINT = "from the checkpoint"


class Option(NamedTuple):
    """Seconds that it costs, by what they are lost to."""

    name: str  # for people
    ranks: int  # that go on
    recovery_s: float  # until all are back
    lost_s: float  # steps that are done again
    slower_s: float  # longer steps until the repair

    @property
    def price_s(self) -> float:
        """The sum."""
        return self.recovery_s + self.lost_s + self.slower_s
