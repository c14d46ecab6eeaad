"""Whether a training's plan is settled: its step takes what it will take.

A plan is made in the second step and followed in the third; then others are
tried beside it, some of which are slower. What is timed before that ends is
not what a long run gets.
"""

ALIKE_STEPS = 3
ALIKE_SHARE = 0.02  # of their time, by which those may differ
VARYING_STEPS = 12  # where each takes another time whatever the plan


class Settling:
    """Watches the steps of a training.

    Args:
        is_varying: Whether steps differ by themselves, in length say. Then
            it only counts that no plan is tried.
    """

    def __init__(self, is_varying: bool) -> None:
        self._is_varying = is_varying
        self._times: list[float] = []  # since a plan was tried

    def add(self, step_ms: float, is_trying: bool) -> None:
        """A step took so long; whether plans were still compared in it."""
        self._times = [] if is_trying else [*self._times, step_ms]

    @property
    def is_settled(self) -> bool:
        """No plan is tried any more, and the last steps were alike."""
        if self._is_varying:
            return len(self._times) >= VARYING_STEPS
        last = self._times[-ALIKE_STEPS:]
        if len(last) < ALIKE_STEPS:
            return False
        return max(last) - min(last) <= ALIKE_SHARE * last[-1]
