"""The most memory that a script had, whatever it resets for itself."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

import torch_chameleon
from torch_chameleon import _C

_NAMES = ("peak_logical_bytes", "peak_host_bytes")


class Peaks:
    """Keeps peaks from one `take` to the next."""

    def __init__(self) -> None:
        self._most: Counter[str] = Counter()

    def install(self) -> None:
        """Sees what resets them, for the rest of the process."""
        resets: tuple[tuple[Any, str], ...] = (
            (_C, "reset_swap_stats"),
            (torch._C, "_accelerator_resetPeakStats"),
        )
        for owner, name in resets:
            setattr(owner, name, self._noting(getattr(owner, name)))

    def take(self) -> dict[str, int]:
        """The peaks since the last time, by name."""
        torch_chameleon.reset_swap_stats()
        found = {name: self._most[name] for name in _NAMES}
        self._most.clear()
        return found

    def forget(self, name: str) -> None:
        """Leaves one of them out, so far.

        Args:
            name: The peak's.
        """
        torch_chameleon.reset_swap_stats()
        del self._most[name]

    def _noting(self, reset: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            if _C.first_use() is not None:
                stats: dict[str, Any] = {**torch_chameleon.swap_stats()}
                self._most |= Counter({name: stats[name] for name in _NAMES})
            return reset(*args)

        return wrapped
