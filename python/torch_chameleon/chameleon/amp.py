"""What torch.autocast asks of a device."""

import torch

__all__ = ["get_amp_supported_dtype", "is_bf16_supported"]


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Returns the dtypes that `torch.autocast("chameleon")` may cast to."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Returns whether the physical device computes in bfloat16."""
    # A physical GPU would be asked; CPU kernels take bfloat16 everywhere.
    return True
