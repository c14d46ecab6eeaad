"""Values that a script reads, which no tensor has under `plan`.

Where something is known of them (`kernels/simulated/facts.h`) it is read: that
nothing is NaN, or how many tokens go to an expert. A truth that is asserted, or
that ends in an error, is the one that lets the script go on (`truths`). Else a
number is 1, which can be divided by, counted with and taken the logarithm of,
and a truth False; what is copied to the CPU is 0 there. Each line of the script
that reads one is noted, and each that makes a size of values, for what depends
on it may be otherwise.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from torch_chameleon import _C
from torch_chameleon.plan import truths

_READS = (
    *("item", "tolist", "__float__", "__int__", "__bool__", "__index__"),
    "__complex__",
)
_TORCH = os.path.dirname(torch.__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_MOST = 1000
_NAMED = 3
_SAVING = os.path.join("torch", "serialization.py")
# Reads at one place: a loop over so many things reads each of them once, and a
# `while` that reads so often waits for what it reads.
_PATIENCE = 100_000
_PATIENCE_OF_WHILE = 10_000  # a step of reinforcement has fewer


class EndlessLoopError(BaseException):
    """Leaves the script, which waits for a value that never comes."""


class Reads:
    """Gives stand-ins, and remembers who read."""

    def __init__(self, script: str) -> None:
        self._script = os.path.abspath(script)
        self._places: dict[tuple[str, int], None] = {}  # in order
        self._sizes: dict[tuple[str, int], bool] = {}  # whether it is known
        self._since_step: Counter[tuple[str, int]] = Counter()

    def install(self) -> None:
        """Turns it on, for the rest of the process."""
        for name in _READS:
            setattr(Tensor, name, self._reading(name, getattr(Tensor, name)))
        found: Any
        for found in (torch, Tensor):
            found.allclose = self._finding_close(found.allclose)
        _C.on_guessed_size(self._note_size)
        _C.on_unknown_read(self._note_copy)

    def sizes(self) -> dict[str, list[str]]:
        """Lines whose sizes depend on values, as "file:line".

        Returns:
            Under "unknown" those of whose values nothing is known; the others
            under "known".
        """
        return {
            name: [
                f"{file}:{line}"
                for (file, line), known in self._sizes.items()
                if known == (name == "known")
            ]
            for name in ("unknown", "known")
        }

    def places(self) -> list[str]:
        """Lines that read, as "file:line"; the script's own where it did."""
        return [f"{file}:{line}" for file, line in self._places]

    def step_ended(self) -> None:
        """Listens to the ends of steps."""
        self._since_step.clear()

    def sentence(self) -> str:
        """Where values were read, in words."""
        return f"read at {named(self.places())}"

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
            return read(_stand_in(tensor, caller, overflow), *args)

        wrapped.__name__ = name
        wrapped.__doc__ = read.__doc__
        return wrapped

    def _finding_close(self, close: Callable[..., bool]) -> Callable[..., bool]:
        def wrapped(tensor: Tensor, *args: Any, **options: Any) -> bool:
            if tensor.device.type != "chameleon":
                return close(tensor, *args, **options)
            self._note(sys._getframe(1))
            close(tensor, *args, **options)  # which takes memory and time
            return True

        return wrapped

    def _note_size(self, known: bool) -> None:
        place = self._place(sys._getframe().f_back)
        if place is not None and len(self._sizes) < _MOST:
            self._sizes[place] = known and self._sizes.get(place, True)

    def _note_copy(self) -> None:
        frame = sys._getframe(1)
        each: FrameType | None = frame
        while each is not None:
            if each.f_code.co_filename.endswith(_SAVING):
                return  # what is in a file decides nothing
            each = each.f_back
        self._note(frame)

    def _note(self, frame: FrameType | None) -> None:
        place = self._place(frame)
        if place is None:
            return
        if len(self._places) < _MOST:
            self._places[place] = None
        self._since_step[place] += 1
        count = self._since_step[place]
        if count > _PATIENCE or (
            count > _PATIENCE_OF_WHILE and truths.waits(frame)
        ):
            file, line = place
            raise EndlessLoopError(
                f"{file}:{line} has read {count - 1:,} values since the last "
                "step; under plan each is 1, 0 or False, so a loop that waits "
                "for another one never ends: bound its number of turns"
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


def _stand_in(tensor: Tensor, caller: FrameType, overflow: bool) -> Tensor:
    """What is read from a tensor, on the CPU."""
    is_truth = tensor.dtype == torch.bool
    if is_truth and tensor.numel() == 1:
        truth = truths.expected(caller)
        if truth is not None:
            return torch.full(tensor.shape, truth, device="cpu")
    if not overflow:
        known = _C.known_values(tensor)
        if known is not None:
            return known
    return torch.full(
        tensor.shape,
        not is_truth and not overflow,
        dtype=tensor.dtype,
        device="cpu",
    )


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
    return ", ".join(places[:_NAMED]) + (
        f" and {more} more" if more > 0 else ""
    )
