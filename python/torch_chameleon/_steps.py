"""Who wants to know that a step ended: recordings, and live lines.

A step ends at `torch_chameleon.step`, or where a program does not call that, at
the end of an optimizer's. The first mark after one that counted ends the same
step.
"""

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

_listeners: list[Callable[[], None]] = []
_hook: Any = None
_UNMARKED = 16  # optimizers' steps without a mark: the program sets none
_since_mark = _UNMARKED
_told_by_optimizer = False  # the last one's end counted


def listen(listener: Callable[[], None]) -> None:
    """Calls `listener` at the end of every step, until `stop_listening`."""
    global _hook, _told_by_optimizer
    if not _listeners:
        _told_by_optimizer = False
        _hook = register_optimizer_step_post_hook(_optimizer_stepped)
    _listeners.append(listener)


def stop_listening(listener: Callable[[], None]) -> None:
    """Ends what `listen` began."""
    global _hook
    _listeners.remove(listener)
    if not _listeners:
        _hook.remove()
        _hook = None


def marked() -> None:
    """The program marked the end of a step."""
    global _since_mark
    is_told = _since_mark > _UNMARKED and _told_by_optimizer
    _since_mark = 0
    if not is_told:
        _tell()


def _optimizer_stepped(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    global _since_mark, _told_by_optimizer
    _since_mark += 1
    _told_by_optimizer = _since_mark > _UNMARKED
    if _told_by_optimizer:
        _tell()


def _tell() -> None:
    for listener in tuple(_listeners):
        listener()
