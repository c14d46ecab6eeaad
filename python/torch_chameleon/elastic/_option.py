"""A way to go on after a failure, and what it costs."""

from typing import NamedTuple

IN_PLACE = "in place"
FROM_CHECKPOINT = "from the checkpoint"
FROM_PARTNER = "from a partner"


def resharded(ranks: int) -> str:
    """What it is called that all of the state is on fewer ranks.

    Args:
        ranks: On how many.
    """
    return f"resharded onto {ranks}"


class Option(NamedTuple):
    """Seconds that it costs, by what they are lost to."""

    name: str  # for people
    ranks: int  # that go on
    recovery_s: float  # until all are back
    lost_s: float  # steps that are done again
    slower_s: float  # of the time until the repair, for samples not taken
    is_fewer: bool = False  # samples a step: the lost ranks' are left out

    @property
    def price_s(self) -> float:
        """The sum."""
        return self.recovery_s + self.lost_s + self.slower_s
