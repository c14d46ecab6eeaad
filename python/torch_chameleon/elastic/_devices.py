"""Which GPUs the workers of a machine see."""

import os

import torch

_VARIABLE = "CUDA_VISIBLE_DEVICES"


def lose_device(rank: int, ranks: int) -> None:
    """Workers that are started from now on do not see a rank's GPU.

    Where several ranks share one it is not lost with a rank.

    Args:
        rank: Which one has it, which is the local rank: there is one machine.
        ranks: How many there are.
    """
    count = torch.cuda.device_count()
    if count < ranks:
        return
    named = os.environ.get(_VARIABLE)
    visible = named.split(",") if named else [str(x) for x in range(count)]
    del visible[rank]
    os.environ[_VARIABLE] = ",".join(visible)
