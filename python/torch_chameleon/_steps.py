"""Where a step of the training ends, and who wants to know.

A step ends at `torch_chameleon.step`, or where a program does not call that,
when an optimizer over parameters on the device has stepped: PyTorch tells it.
Where no optimizer steps either, as where weights are changed by hand, it ends
with a backward pass. `config.step_marks` says what of it the profiler hears.
The first mark after an optimizer's step that counted ends the same step.
"""

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from torch_chameleon import _C
from torch_chameleon._optimizer_group import OptimizerGroup

_listeners: list[Callable[[], None]] = []
_UNMARKED = 16  # optimizers' steps without a mark: the program sets none
_since_mark = _UNMARKED
_told_by_optimizer = False  # the last one's end counted
_optimizers = OptimizerGroup()
_PATIENCE = 3  # steps that may have no mark and no optimizer
_backwards = 0  # since one of these, and before it since the one before
_usual_backwards = 0


def listen(listener: Callable[[], None]) -> None:
    """Calls `listener` at the end of every step, until `stop_listening`."""
    global _told_by_optimizer
    if not _listeners:
        _told_by_optimizer = False
    _listeners.append(listener)


def stop_listening(listener: Callable[[], None]) -> None:
    """Ends what `listen` began."""
    _listeners.remove(listener)


def marked(index: int) -> None:
    """The program marked the end of a step on device `index`."""
    global _since_mark
    if _C.get_option("step_marks") != "off":
        _C.step(index)
    _count_backwards()
    is_told = _since_mark > _UNMARKED and _told_by_optimizer
    _since_mark = 0
    if not is_told:
        _tell()


def _device_index(optimizer: Optimizer) -> int | None:
    """The device of its parameters; None where they are elsewhere."""
    for group in optimizer.param_groups:
        for parameter in group["params"][:1]:
            if parameter.device.type == "chameleon":
                return int(parameter.device.index)
    return None


def _optimizer_stepped(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    global _since_mark, _told_by_optimizer
    index = _device_index(optimizer)
    if index is None or not _optimizers.ends_step(optimizer):
        return
    _since_mark += 1
    _told_by_optimizer = _since_mark > _UNMARKED
    _count_backwards()
    if _told_by_optimizer:
        _found(index)


def _count_backwards() -> None:
    global _backwards, _usual_backwards
    _usual_backwards, _backwards = _backwards, 0


def backward_ended(index: int) -> None:
    """A backward pass ended on device `index`, in no other one."""
    global _backwards
    _backwards += 1
    if _backwards > _PATIENCE * (_usual_backwards + 1):
        _found(index)


def _found(index: int) -> None:
    """A step ended that the program did not mark."""
    if _C.get_option("step_marks") == "auto":
        _C.step(index)
    _tell()


def _tell() -> None:
    for listener in tuple(_listeners):
        listener()


# In a compiled optimizer it runs as it is, after what was compiled.
_optimizer_stepped._torchdynamo_disable = True  # type: ignore[attr-defined]
register_optimizer_step_post_hook(_optimizer_stepped)
