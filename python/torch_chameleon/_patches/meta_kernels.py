"""What torch.compile and torch.export have to know of results beforehand.

PyTorch has no shapes for the derivative of attention as a device of its own
may compute it. Without them it runs the op once on zeros to see them, and
cannot where sizes are symbols.
"""

import torch

from torch_chameleon import _C


def _attention_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *others: object,
    **options: object,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
    """As the physical device's own kernel lays its results out."""

    def like(operand: torch.Tensor) -> torch.Tensor:
        if _C.physical_device() != "cpu":
            return torch.empty_like(operand)
        return torch.empty_permuted(
            operand.shape,
            (0, 2, 1, 3),
            dtype=operand.dtype,
            device=operand.device,
        )

    return like(query), like(key), like(value), None


# Kept: its kernels go with it.
_library = torch.library.Library("aten", "IMPL", "Meta")


def install() -> None:
    """Registers them; once a process."""
    _library.impl(
        "_scaled_dot_product_fused_attention_overrideable_backward",
        _attention_backward,
    )
