"""What a rank has measured of its training."""

from typing import NamedTuple


class Figures(NamedTuple):
    """Numbers for whoever prices a recovery; 0: not measured yet."""

    step_s: float = 0  # from commit to commit, the median of the last ones
    slowdown: float = 0  # of a step with a rank less, by the model
    longer: float = 0  # the same of a step of the ranks' own samples
    commit_s: float = 0  # of a copy into the keeper's memory
    restore_s: float = 0  # of one out of it
    kept_bytes: float = 0
    start_s: float = 0  # from a process's start to its first commit's place
    checkpoint_steps: float = (
        0  # done at the newest checkpoint; 0: there is none
    )
    checkpoint_s: float = 0  # of writing it
    reading_s: float = 0  # of coming back from one
    partner_s: float = 0  # of a copy to the partner's memory, in the background
    fetch_s: float = 0  # of one from another rank's memory, to come back
    partner_steps: float = (
        0  # done at the newest generation that all partners have; 0: none
    )
    sharded: float = 0  # 1: a rank has a part of the state alone
    machines: float = 0  # 0: one

    def worst(self, other: "Figures") -> "Figures":
        """Of two ranks: all wait for the slowest, and need what both have.

        Args:
            other: Another rank's.
        """
        worst = Figures(*map(max, self, other))
        return worst._replace(
            checkpoint_steps=min(self.checkpoint_steps, other.checkpoint_steps),
            partner_steps=min(self.partner_steps, other.partner_steps),
        )
