"""Several processes, as torchrun starts them: which device each has."""

import os

import torch

from torch_chameleon import chameleon

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


def is_launched() -> bool:
    """Whether a launcher such as torchrun says which rank this process is."""
    return all(os.environ.get(name) for name in _VARIABLES)


def device_of_rank() -> torch.device:
    """The device of this process: that of its local rank, else the first.

    A launcher may show each process one GPU, which is the first there.
    """
    if not is_launched():
        return torch.device("chameleon", 0)
    index = int(os.environ["LOCAL_RANK"]) % chameleon.device_count()
    return torch.device("chameleon", index)
