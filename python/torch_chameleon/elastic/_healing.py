"""`--policy heal`: each rank is a replica, with an agent of its own.

When one dies its agent starts it again, and it gets its state from the others,
which go on meanwhile. torchft does that; here is who starts all of them, and
its lighthouse, by which they find each other.
"""

import argparse
import contextlib
import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

import torch.distributed as dist

from torch_chameleon.elastic import _replicas
from torch_chameleon.elastic._devices import take_device
from torch_chameleon.elastic._failures import Seen

_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_SILENT_MS, _JOIN_MS = 1000, 1000  # until one is dead; for others at the start
_HERE = "127.0.0.1"
Agent = Callable[[argparse.Namespace, Callable[[Seen], None]], int]


def why_not() -> str:
    """Why there can be no such launch; "": there can."""
    try:
        import torchft  # noqa: F401
    except ImportError as error:
        return _replicas.missing(error)
    return ""


def launch(options: argparse.Namespace, agent: Agent) -> int:
    """Launches all replicas, and waits for them.

    Args:
        options: The launcher's.
        agent: Runs one.

    Returns:
        The exit status: 1 where a replica failed for good, else 0.
    """
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(
        bind=f"{_HERE}:0",
        min_replicas=1,
        join_timeout_ms=_JOIN_MS,
        heartbeat_timeout_ms=_SILENT_MS,
    )
    port = lighthouse.address().rpartition(":")[2]
    os.environ[_replicas.LIGHTHOUSE_VARIABLE] = f"http://{_HERE}:{port}"
    context = multiprocessing.get_context("spawn")
    number = int(options.nproc_per_node)
    meeting = dist.TCPStore(  # type: ignore[attr-defined]
        _HERE, 0, is_master=True, wait_for_workers=False
    )
    os.environ[_replicas.MEETING_VARIABLE] = f"{meeting.port},{number}"
    replicas: list[tuple[SpawnProcess, Connection]] = []
    seen, status = Seen([], [], 0), 0
    try:
        for each in range(number):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_run, args=(options, each, number, agent, theirs)
            )
            process.start()
            theirs.close()
            replicas.append((process, ours))
        for process, ours in replicas:
            with contextlib.suppress(EOFError):  # it was killed
                seen = seen.with_those_of(ours.recv())
            process.join()
            status = 1 if process.exitcode else status
    finally:
        for process, _ in replicas:
            process.terminate()
        for process, _ in replicas:
            process.join()
        lighthouse.shutdown()
        print(seen.line(), flush=True)
    return status


def _run(
    options: argparse.Namespace,
    replica: int,
    replicas: int,
    agent: Agent,
    teller: Connection,
) -> None:
    """The process of a replica's agent."""
    # It ends with the launcher.
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    take_device(replica, replicas)
    os.environ[_replicas.REPLICA_VARIABLE] = str(replica)
    options.nproc_per_node, options.shares = "1", 1
    options.rdzv_endpoint, options.standalone = "", True
    raise SystemExit(agent(options, teller.send))
