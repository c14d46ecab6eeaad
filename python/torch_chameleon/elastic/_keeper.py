"""Who holds the memory of this process's rank, beyond its life."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from torch_chameleon import _ranks
from torch_chameleon.elastic._memory import FILES, Memory

KEEPER_VARIABLE = "CHAMELEON_KEEPER"
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_taken = False
_started: list[subprocess.Popen[bytes]] = []  # not warned of: they outlive us
_SCRIPT = str(Path(__file__).with_name("_keeper_process.py"))


def address(descriptors: list[list[int]]) -> str:
    """What KEEPER_VARIABLE says to the workers of a launcher.

    Args:
        descriptors: Of this process, by local rank.
    """
    ranks = ";".join(",".join(map(str, each)) for each in descriptors)
    return f"{os.getpid()}:{ranks}"


class Memories(NamedTuple):
    """Those that this process can see."""

    own: Memory
    all: list[Memory]  # by local rank; under another agent one's own alone


def find() -> Memories | None:
    """The memory of this process's rank, and of others.

    Our launcher holds those of all ranks, and its workers end with it. Under
    another elastic agent each rank has a small process that holds its own and
    ends with the agent; the first life of the rank starts it.

    Returns:
        None: There is no agent, so nobody would start the process again.

    Raises:
        RuntimeError: The launcher is gone, or this was asked before.
    """
    global _taken
    if not _ranks.is_launched() or "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    if _taken:
        raise RuntimeError(
            "elastic.State: a process that comes back could not tell two of "
            "them apart; make one that has all objects"
        )
    _taken = True
    # LOCAL_RANK is 0 for all with torchrun's --virtual-local-rank.
    rank = int(os.environ["RANK"]) % int(os.environ["LOCAL_WORLD_SIZE"])
    if KEEPER_VARIABLE not in os.environ:
        own = _of_agent(os.getppid(), rank)
        return Memories(own, [own])
    memories = _of_launcher(os.environ[KEEPER_VARIABLE])
    return Memories(memories[rank], memories)


def _of_launcher(text: str) -> list[Memory]:
    process, _, ranks = text.partition(":")
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    try:
        return [
            Memory.held_by(int(process), [int(one) for one in rank.split(",")])
            for rank in ranks.split(";")
        ]
    except (OSError, ValueError) as error:
        raise RuntimeError(
            f"chameleon: {KEEPER_VARIABLE}={text!a} names no launcher that "
            f"runs: {error}"
        ) from None


def _of_agent(agent: int, rank: int) -> Memory:
    keeper = next(_keepers(agent, rank), None)
    if keeper is not None:
        return Memory.held_by(*keeper)
    files = Memory.create(rank)
    pidfd = os.pidfd_open(agent)
    held = [*files, pidfd]
    numbers = map(str, (agent, rank, *held))
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", _SCRIPT, *numbers],
            pass_fds=held,
            start_new_session=True,  # agents end whole sessions
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _started.append(process)
    finally:
        os.close(pidfd)
    return Memory(files)


def _keepers(agent: int, rank: int) -> Iterator[tuple[int, list[int]]]:
    """Processes that hold a rank's files for an agent, with descriptors."""
    sought = [_SCRIPT, str(agent), str(rank)]
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            said = Path(f"/proc/{process}/cmdline").read_bytes()
        except OSError:  # it is gone
            continue
        words = said.decode(errors="replace").split("\0")[:-1]
        if words[-FILES - 4 : -FILES - 1] == sought:
            yield int(process), [int(word) for word in words[-FILES - 1 : -1]]
