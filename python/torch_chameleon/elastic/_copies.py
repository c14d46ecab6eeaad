"""Where the bytes of a commit come from."""

import mmap
import threading
import time
from collections.abc import Sequence

import torch

from torch_chameleon import _C

Value = tuple[int, int]  # names a tensor's value
UNKNOWN: Value = (0, 0)
_NAP_S = 0.001


class Copies:
    """Fills blocks of the keeper's memory with tensors' values.

    Tensors of chameleon leave while the link is idle; others at once. What an
    op is about to write is copied before it. The memory is pinned for the
    device, so that it can write there by itself.
    """

    def __init__(self) -> None:
        """Knows of no memory yet."""
        self._pinned: dict[int, tuple[int, int]] = {}  # device, bytes

    def begin(
        self,
        blocks: Sequence[torch.Tensor],
        tensors: Sequence[torch.Tensor],
        had: Sequence[Value],
    ) -> list[Value]:
        """The blocks get the values that the tensors have now.

        Args:
            blocks: Memory, as bytes, that nobody else writes until `finish`
                returns.
            tensors: As many, on any device.
            had: The value that each block has.

        Returns:
            The value that each block gets. If it is the one that the block has,
            the block is left alone, unless it is UNKNOWN.
        """
        for block, tensor in zip(blocks, tensors, strict=True):
            if tensor.device.type == "chameleon":
                self._pin(block, tensor.device.index)
                break
        return [
            _begin(*each) for each in zip(blocks, tensors, had, strict=True)
        ]

    def finish(self) -> None:
        """Returns when all are filled. Another thread calls it."""
        while not _C.finish_mirror():  # the rest awaits ops that were deferred
            if not threading.main_thread().is_alive():
                self.hurry()  # the process ends, and nobody else runs them
            time.sleep(_NAP_S)

    def hurry(self) -> None:
        """Lets `finish` return: the caller waits for that."""
        _C.finish_awaited_by_mirror()

    def forget(self, memory: torch.Tensor) -> None:
        """Memory of which blocks were parts is about to go.

        Args:
            memory: All of it, as bytes.
        """
        address = memory.untyped_storage().data_ptr()
        device, size = self._pinned.pop(address, (0, 0))
        if size:
            _C.unpin_memory(device, address, size)

    def _pin(self, block: torch.Tensor, device: int) -> None:
        """Pins all of the memory that a block is in, once."""
        memory = block.untyped_storage()
        address = memory.data_ptr()
        if address not in self._pinned:
            size = -(-memory.nbytes() // mmap.PAGESIZE) * mmap.PAGESIZE
            _C.pin_memory(device, address, size)
            self._pinned[address] = device, size


def _begin(block: torch.Tensor, tensor: torch.Tensor, had: Value) -> Value:
    is_plain = tensor.is_contiguous() and not (
        tensor.is_neg() or tensor.is_conj()
    )
    if tensor.device.type == "chameleon" and is_plain and tensor.numel() > 0:
        value = _C.mirror(tensor, block.data_ptr(), had)
        if value is not None:
            return value
    block.view(tensor.dtype).view(tensor.shape).copy_(tensor)
    return UNKNOWN
