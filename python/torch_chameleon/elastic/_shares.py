"""Among how many ranks a step's samples are divided."""

import os

import torch.distributed as dist

SHARES_VARIABLE = "CHAMELEON_SHARES"


def may_be_fewer() -> bool:
    """Whether the launcher may leave the samples of a lost rank out."""
    return SHARES_VARIABLE in os.environ


def shares() -> int:
    """Among how many ranks a step's samples are to be divided.

    That is the number of ranks; but where the user lets a step have fewer
    samples (`--allow-fewer-samples`), and that was chosen when a rank was lost,
    it still is the number of ranks before. Who takes one share for each rank
    then takes as many samples as before, and leaves the lost rank's out:

        for each in range(rank, micro_batches, torch_chameleon.elastic.shares())

    Returns:
        A number, at least that of the ranks.
    """
    said = os.environ.get(SHARES_VARIABLE)
    if said is not None:
        return int(said)
    return dist.get_world_size() if dist.is_initialized() else 1
