"""Several processes, as torchrun starts them: which device each has."""

import os

import torch

from torch_chameleon import chameleon

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


def is_launched() -> bool:
    """Whether a launcher such as torchrun says which rank this process is."""
    return all(os.environ.get(name) for name in _VARIABLES)


def place() -> tuple[int, int]:
    """This process's rank, and how many there are: (0, 1) if it is alone."""
    if not is_launched():
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def path_of_rank(path: str | os.PathLike[str]) -> str:
    """The file in which this process writes what all write to `path`.

    Rank 0 writes that one: a program may have only rank 0 write at all.
    """
    path = os.fspath(path)
    rank, _ = place()
    if rank == 0:
        return path
    root, extension = os.path.splitext(path)
    return f"{root}.rank{rank}{extension}"


def device_of_rank() -> torch.device:
    """The device of this process: that of its local rank, else the first.

    A launcher may show each process one GPU, which is the first there.
    """
    if not is_launched():
        return torch.device("chameleon", 0)
    index = int(os.environ["LOCAL_RANK"]) % chameleon.device_count()
    return torch.device("chameleon", index)
