"""A rank's snapshot, as it is read again."""

import io

import torch

from torch_chameleon.elastic._pieces import Piece
from torch_chameleon.elastic._slot import Slot


class Image:
    """A snapshot in a slot: its tree, its pieces, and their values there."""

    def __init__(self, index: bytes, blocks: list[torch.Tensor]):
        """Reads an index.

        Args:
            index: A snapshot's. It is data alone: nothing of it is run.
            blocks: The bytes of its tensors.
        """
        self.rank, self.world, pieces, self.tree = torch.load(
            io.BytesIO(index), weights_only=True
        )
        self.pieces = [Piece(*piece) for piece in pieces]
        self._blocks = blocks

    @classmethod
    def of(cls, slot: Slot) -> "Image | None":
        """That in a slot, if it is there and whole.

        Args:
            slot: Where.
        """
        found = slot.read()
        return None if found is None else cls(*found)

    @property
    def is_sharded(self) -> bool:
        """Whether other ranks' images have what this one lacks."""
        return any(piece.is_sharded for piece in self.pieces)

    def values(self, number: int) -> torch.Tensor:
        """A piece's, as a view of the slot's memory.

        Args:
            number: Which piece.
        """
        piece = self.pieces[number]
        return self._blocks[number].view(piece.dtype).view(piece.part)
