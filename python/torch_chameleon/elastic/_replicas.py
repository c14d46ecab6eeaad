"""What a script of several replicas asks for."""

import contextlib
import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist

REPLICA_VARIABLE = "CHAMELEON_REPLICA_NUMBER"
MEETING_VARIABLE = "CHAMELEON_REPLICAS_MEET"
LIGHTHOUSE_VARIABLE = "TORCHFT_LIGHTHOUSE"  # torchft's own
TIMEOUT_S = 60.0


def manager(timeout_seconds: float = TIMEOUT_S) -> Any:
    """This replica's manager, torchft's, in a launch with `--policy heal`.

    Give it to `torchft.DistributedDataParallel` and `torchft.Optimizer`, and
    name it in `elastic.State`: a replica that comes back then has the others'
    state when its first `optimizer.zero_grad()` returns.

    Args:
        timeout_seconds: How long a replica waits for another one.

    Raises:
        RuntimeError: There is no such launch, or no torchft.
    """
    if LIGHTHOUSE_VARIABLE not in os.environ:
        raise RuntimeError(
            "elastic.manager(): no launcher has a lighthouse; start the script "
            "by python -m torch_chameleon elastic --policy heal"
        )
    try:
        from torch_chameleon.elastic import _torchft
    except ImportError as error:
        raise RuntimeError(f"elastic.manager(): {missing(error)}") from None
    return _torchft.Replica(timeout_seconds)


def meet(timeout: timedelta) -> None:
    """Waits until all replicas have begun their first life, which counts once.

    Else the first ones would train without the others, and who has nothing
    would begin anew where they have died meanwhile.

    Args:
        timeout: After this they go on without those that did not come.
    """
    port, number = map(int, os.environ[MEETING_VARIABLE].split(","))
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", port, is_master=False
    )
    store.set(os.environ[REPLICA_VARIABLE], "")
    with contextlib.suppress(dist.DistStoreError):
        store.wait([str(each) for each in range(number)], timeout)


def missing(error: ImportError) -> str:
    """Why there is no torchft, and what helps.

    Args:
        error: What its import said.
    """
    return (
        f"torchft cannot be imported ({error}); it is in "
        "pip install torch_chameleon[heal]"
    )
