"""What torch.autocast asks of a device."""

import torch

__all__ = ["get_amp_supported_dtype"]


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Returns the dtypes that `torch.autocast("chameleon")` may cast to."""
    return [torch.float16, torch.bfloat16]
