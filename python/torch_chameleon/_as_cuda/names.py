"""What "cuda" means, for code that is not told by `calls`."""

from typing import Any

import torch


def ours_for(value: Any) -> Any:
    """The value with chameleon in place of cuda, where it is a device."""
    if isinstance(value, torch.device):
        if value.type != "cuda":
            return value
        if value.index is None:
            return torch.device("chameleon")
        return torch.device("chameleon", value.index)
    if isinstance(value, str) and (
        value == "cuda" or value.startswith("cuda:")
    ):
        return value.replace("cuda", "chameleon", 1)
    return value
