"""Values that a script reads, which no tensor has under `plan`.

A number is read as 1, which can be divided by, counted with and taken the
logarithm of; a truth as False. Each line of the script that reads one is
noted, for what depends on it may be otherwise with values.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor

_READS = (
    *("item", "tolist", "__float__", "__int__", "__bool__", "__index__"),
    "__complex__",
)
_TORCH = os.path.dirname(torch.__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_MOST = 1000
_NAMED = 3
_PATIENCE = 100_000  # reads at one place; a step of reinforcement has fewer


class EndlessLoopError(BaseException):
    """Leaves the script, which waits for a value that never comes."""


class Reads:
    """Gives stand-ins, and remembers who read."""

    def __init__(self, script: str) -> None:
        self._script = os.path.abspath(script)
        self._places: dict[tuple[str, int], None] = {}  # in order
        self._since_step: Counter[tuple[str, int]] = Counter()

    def install(self) -> None:
        """Turns it on, for the rest of the process."""
        for name in _READS:
            setattr(Tensor, name, self._reading(name, getattr(Tensor, name)))

    def places(self) -> list[str]:
        """Lines that read, as "file:line"; the script's own where it did."""
        return [f"{file}:{line}" for file, line in self._places]

    def step_ended(self) -> None:
        """Listens to the ends of steps."""
        self._since_step.clear()

    def sentence(self) -> str:
        """Where values were read, in words."""
        return named(self.places())

    def _reading(
        self, name: str, read: Callable[..., Any]
    ) -> Callable[..., Any]:
        def wrapped(tensor: Tensor, *args: Any) -> Any:
            if tensor.device.type != "chameleon":
                return read(tensor, *args)
            caller = sys._getframe(1)
            overflow = _asks_for_overflow(caller)
            if not overflow:
                self._note(caller)
            is_number = tensor.dtype != torch.bool and not overflow
            values = torch.full(
                tensor.shape, is_number, dtype=tensor.dtype, device="cpu"
            )
            return read(values, *args)

        wrapped.__name__ = name
        wrapped.__doc__ = read.__doc__
        return wrapped

    def _note(self, frame: FrameType | None) -> None:
        place = self._place(frame)
        if place is None:
            return
        if len(self._places) < _MOST:
            self._places[place] = None
        self._since_step[place] += 1
        if self._since_step[place] > _PATIENCE:
            file, line = place
            raise EndlessLoopError(
                f"{file}:{line} has read {_PATIENCE:,} values since the last "
                "step; under plan each is 1 or False, so a loop that waits for "
                "another one never ends: bound its number of turns"
            )

    def _place(self, frame: FrameType | None) -> tuple[str, int] | None:
        first = None
        while frame is not None:
            file = frame.f_code.co_filename
            if file == self._script:
                return os.path.basename(file), frame.f_lineno
            if first is None and not file.startswith((_TORCH, _OURS, "<")):
                first = (os.path.basename(file), frame.f_lineno)
            frame = frame.f_back
        return first


def _asks_for_overflow(caller: FrameType) -> bool:
    """Whether a GradScaler reads: after an overflow no optimizer would step."""
    code = caller.f_code
    is_scaler = code.co_filename.endswith("grad_scaler.py")
    return is_scaler and code.co_name != "get_scale"


def named(places: list[str]) -> str:
    """Some of the places in words.

    Args:
        places: As `Reads.places` gives them, at least one.
    """
    more = len(places) - _NAMED
    return f"read at {', '.join(places[:_NAMED])}" + (
        f" and {more} more" if more > 0 else ""
    )
