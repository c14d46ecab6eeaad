"""Which GPUs the workers of a machine see, and whether one is lost."""

import argparse
import os
import pathlib
import subprocess
import sys

import torch

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_PROBE = pathlib.Path(__file__).with_name("_probe.py")
_TIMEOUT_S = 30
# Of the driver's API: there is one, but no memory for a context, or another
# process has it alone.
_THERE = {0, 2, 46}


def is_lost(rank: int, ranks: int) -> bool:
    """Whether the driver has lost a rank's GPU.

    Args:
        rank: Which one has it, which is the local rank: there is one machine.
        ranks: How many there are. Where several share a GPU nobody is asked.
    """
    if torch.cuda.device_count() < ranks:
        return False
    probe = subprocess.Popen(
        [sys.executable, "-S", _PROBE, str(rank)], stderr=subprocess.DEVNULL
    )
    try:
        return probe.wait(_TIMEOUT_S) not in _THERE
    except subprocess.TimeoutExpired:
        probe.kill()  # not waited for: a driver may never let go of it
        return True


def lose_device(options: argparse.Namespace, rank: int, ranks: int) -> None:
    """Workers that are started from now on do not see a rank's GPU.

    Where several ranks share one it is not lost with a rank.

    Args:
        options: The launcher's, which may change.
        rank: Which one has it, which is the local rank: there is one machine.
        ranks: How many there are.
    """
    visible = _visible(ranks)
    if visible:
        del visible[rank]
        os.environ[_VARIABLE] = ",".join(visible)
        options.start_method = "spawn"  # a fork server keeps its environment


def take_device(replica: int, replicas: int) -> None:
    """This process, and whom it starts, see a replica's GPU alone.

    Where several replicas share one they see all of them.

    Args:
        replica: Which one has it.
        replicas: How many there are.
    """
    visible = _visible(replicas)
    if visible:
        os.environ[_VARIABLE] = visible[replica]


def _visible(least: int) -> list[str]:
    """The GPUs that workers see; none where they are fewer than so many."""
    count = torch.cuda.device_count()
    if count < least:
        return []
    named = os.environ.get(_VARIABLE)
    return named.split(",") if named else [str(x) for x in range(count)]
