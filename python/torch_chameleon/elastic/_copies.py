"""Where the bytes of a commit come from."""

from collections.abc import Sequence
from typing import Protocol

import torch


class Copies(Protocol):
    """Fills blocks of the keeper's memory with tensors' values."""

    def fill(
        self, blocks: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]
    ) -> None:
        """Returns when all are filled.

        Args:
            blocks: Memory, as bytes.
            tensors: As many, on any device.
        """


class DirectCopies:
    """Each tensor is copied from where it is, on the calling thread."""

    def fill(
        self, blocks: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]
    ) -> None:
        """See `Copies`."""
        for block, tensor in zip(blocks, tensors, strict=True):
            block.view(tensor.dtype).view(tensor.shape).copy_(tensor)
