"""Which of a training's optimizers ends its step."""

import weakref

from torch.optim import Optimizer


class OptimizerGroup:
    """Says of each optimizer's step whether a step of the training ends there.

    Optimizers step in a recurring group: one alone, a critic five times and
    then a generator, one for each parameter while gradients are made. The
    group ends with the optimizer that stepped for the first time last, which
    is the last one of the first group. Where that one stays away for several
    groups (a phase of the training is over), the group is learned anew.

    Optimizers are not kept alive. Safe under the GIL.
    """

    PATIENCE = 4  # groups that may go by without their last optimizer
    FIRST = 16  # so many steps of one optimizer may the first group have

    def __init__(self) -> None:
        # How often each one stepped since the group ended, and the most.
        self._steps: weakref.WeakKeyDictionary[Optimizer, int] = (
            weakref.WeakKeyDictionary()
        )
        self._most = 0
        self._usual = 0  # the most in the group before
        self._last: weakref.ref[Optimizer] | None = None

    def ends_step(self, optimizer: Optimizer) -> bool:
        """Whether the step that `optimizer` just made ends the training's."""
        if optimizer not in self._steps:
            return self._end(optimizer, self.FIRST)
        if self._last is not None and self._last() is optimizer:
            return self._end(optimizer, self._most)
        self._steps[optimizer] += 1
        self._most = max(self._most, self._steps[optimizer])
        if self._most <= self.PATIENCE * (self._usual + 1):
            return False
        self._steps.clear()
        return self._end(optimizer, self.FIRST)

    def _end(self, last: Optimizer, usual: int) -> bool:
        self._last = weakref.ref(last)
        self._usual = usual
        self._most = 0
        for known in self._steps:
            self._steps[known] = 0
        self._steps[last] = 0
        return True
