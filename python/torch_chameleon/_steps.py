"""Who wants to know that a step ended: recordings, and live lines.

A step ends at `torch_chameleon.step`, or where a program never calls that, at
the end of an optimizer's.
"""

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

_listeners: list[Callable[[], None]] = []
_hook: Any = None
_marked = False  # the program calls torch_chameleon.step()


def listen(listener: Callable[[], None]) -> None:
    """Calls `listener` at the end of every step, until `stop_listening`."""
    global _hook, _marked
    if not _listeners:
        _marked = False
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
    global _marked
    if _listeners:
        _marked = True
        _tell()


def _optimizer_stepped(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if not _marked:
        _tell()


def _tell() -> None:
    for listener in tuple(_listeners):
        listener()
