"""Which optimizers a script has, and whether one op could do their steps."""

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)


class Optimizers:
    """Those that have stepped."""

    def __init__(self) -> None:
        self._could_be: dict[str, bool] = {}  # fused, by name

    def install(self) -> None:
        """Sees their steps, for the rest of the process."""
        register_optimizer_step_post_hook(self._stepped)

    def to_fuse(self) -> list[str]:
        """Names of those that could be fused, if no other makes lists."""
        names = list(self._could_be)
        return names if all(self._could_be.values()) else []

    def _stepped(self, optimizer: torch.optim.Optimizer, *rest: object) -> None:
        if not optimizer.defaults.get("fused"):
            # One that is derived from them may do something else.
            could_be = type(optimizer) in _FUSED
            self._could_be[type(optimizer).__name__] = could_be
