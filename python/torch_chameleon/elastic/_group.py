"""All processes of a training, or one alone."""

import torch
import torch.distributed as dist

from torch_chameleon import _ranks

_PIECE_BYTES = 64 << 20  # that are on their way at once


class Group:
    """A group of its own, for CPU tensors, whatever the training's is made of.

    Without a process group this process is alone, whatever the launcher says.
    """

    def __init__(self) -> None:
        """All ranks make it at the same place of the program."""
        self.rank, self.world = 0, 1
        self._group = None
        if dist.is_available() and dist.is_initialized():
            self.rank, self.world = dist.get_rank(), dist.get_world_size()
        else:
            self.rank, _ = _ranks.place()
        if self.world > 1:
            self._group = dist.new_group(backend="gloo")

    def gather(self, numbers: list[int]) -> list[list[int]]:
        """What each rank says.

        Args:
            numbers: As many on every rank.
        """
        if self._group is None:
            return [numbers]
        own = torch.tensor(numbers)
        all_of_them = [torch.empty_like(own) for _ in range(self.world)]
        dist.all_gather(all_of_them, own, group=self._group)
        return [each.tolist() for each in all_of_them]

    def broadcast(self, data: torch.Tensor, source: int) -> None:
        """Fills it on all ranks with what one of them has.

        Args:
            data: Equally large on all.
            source: Which rank it is.
        """
        if self._group is not None:
            for piece in data.split(_PIECE_BYTES):
                dist.broadcast(piece, source, group=self._group)

    def meet(self) -> None:
        """Returns when all ranks have called it.

        Raises:
            RuntimeError: One of them ended before.
        """
        if self._group is not None:
            dist.barrier(group=self._group)
