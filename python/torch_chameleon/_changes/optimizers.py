"""Which optimizers a training has, and what could be changed of them."""

import weakref

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)


class Optimizers:
    """Those that have stepped."""

    def __init__(self) -> None:
        self._could_be: dict[str, bool] = {}  # fused, by name
        self._bytes: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = (
            weakref.WeakKeyDictionary()
        )
        self._states: dict[str, int] = {}

    def install(self) -> None:
        """Sees their steps, for the rest of the process."""
        register_optimizer_step_post_hook(self.stepped)

    def to_fuse(self) -> list[str]:
        """Names of those that could be fused, if no other makes lists."""
        names = list(self._could_be)
        return names if all(self._could_be.values()) else []

    def states(self) -> dict[str, int]:
        """Bytes of states in float32 on the device, by the optimizers' names.

        As they were at the last step of any.
        """
        return self._states

    def stepped(self, optimizer: torch.optim.Optimizer, *rest: object) -> None:
        """Notes what one has, behind its step.

        Args:
            optimizer: Which.
            rest: As torch's hooks are given it.
        """
        name = type(optimizer).__name__
        if not optimizer.defaults.get("fused"):
            # One that is derived from them may do something else.
            self._could_be[name] = type(optimizer) in _FUSED
        self._bytes[optimizer] = _float32_bytes(optimizer)
        self._states = {}
        for each, count in self._bytes.items():
            if count:
                kind = type(each).__name__
                self._states[kind] = self._states.get(kind, 0) + count


def _float32_bytes(optimizer: torch.optim.Optimizer) -> int:
    return sum(
        value.nbytes
        for state in optimizer.state.values()
        if isinstance(state, dict)
        for value in state.values()
        if isinstance(value, torch.Tensor)
        and value.dtype == torch.float32
        and value.device.type == "chameleon"
        and value.layout == torch.strided
    )
