"""Images that all processes see, one after the other."""

import os
from collections.abc import Iterator, Mapping, Sequence

import torch

from torch_chameleon.elastic._group import Group
from torch_chameleon.elastic._image import Image
from torch_chameleon.elastic._slot import Slot


class Passing:
    """A generation of another number of ranks, whose images are apart.

    Whoever has one gives it to all, and all are done with it before the next
    one comes: a process has one more at a time, however many there are.
    """

    def __init__(
        self, group: Group, givers: Sequence[int], held: Mapping[int, Slot]
    ):
        """The same on all ranks, but for what is held.

        Args:
            group: The ranks, which all iterate.
            givers: Who gives an image, by the rank that wrote it.
            held: Those that this process has, by the same.
        """
        self._group = group
        self._givers = givers
        self._held = held

    def __iter__(self) -> Iterator[Image]:
        descriptor = os.memfd_create("chameleon elastic image")
        try:
            slot = Slot(descriptor)
            for rank, giver in enumerate(self._givers):
                is_giver = giver == self._group.rank
                given = self._held[rank] if is_giver else slot
                head = torch.tensor(given.head)
                self._group.broadcast(head, giver)
                body = given.body if is_giver else slot.receive(head.tolist())
                self._group.broadcast(body, giver)
                if not is_giver:
                    slot.received()
                image = Image.of(given)
                if image is None:
                    raise RuntimeError(
                        f"elastic.State: what rank {giver} has in memory of "
                        f"rank {rank} is damaged since it was looked at"
                    )
                yield image
        finally:
            os.close(descriptor)
