"""Values that a script reads, which no tensor has under `plan`.

A number is read as 1, which can be divided by, counted with and taken the
logarithm of; a truth as False. Each line of the script that reads one is
noted, for what depends on it may be otherwise with values.
"""

import os
import sys
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


class Reads:
    """Gives stand-ins, and remembers who read."""

    def __init__(self, script: str) -> None:
        self._script = os.path.abspath(script)
        self._places: dict[tuple[str, int], None] = {}  # in order

    def install(self) -> None:
        """Turns it on, for the rest of the process."""
        for name in _READS:
            setattr(Tensor, name, self._reading(name, getattr(Tensor, name)))

    def places(self) -> list[str]:
        """Lines that read, as "file:line"; the script's own where it did."""
        return [f"{file}:{line}" for file, line in self._places]

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
        if len(self._places) >= _MOST:
            return
        first = None
        while frame is not None:
            file = frame.f_code.co_filename
            if file == self._script:
                self._places[os.path.basename(file), frame.f_lineno] = None
                return
            if first is None and not file.startswith((_TORCH, _OURS, "<")):
                first = (os.path.basename(file), frame.f_lineno)
            frame = frame.f_back
        if first is not None:
            self._places[first] = None


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
