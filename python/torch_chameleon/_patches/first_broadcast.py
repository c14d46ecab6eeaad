"""How DistributedDataParallel copies a model to all ranks when it is made.

It joins the parameters in pieces of 250 MiB, so that a piece and the parameters
in it are needed at once. Its own error would advise a smaller batch.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed

_ADVICE = (
    "DistributedDataParallel joins what it copies to all ranks in pieces of "
    "250 MiB, and needs twice that, or twice the model if that is less: where "
    "all ranks begin with the same parameters, init_sync=False leaves it out."
)


def _advise(broadcast: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(broadcast)
    def done(*args: Any, **kwargs: Any) -> None:
        try:
            broadcast(*args, **kwargs)
        except torch.OutOfMemoryError as error:
            raise torch.OutOfMemoryError(f"{error}. {_ADVICE}") from None

    return done


def install() -> None:
    """Once a process."""
    if not torch.distributed.is_available():
        return
    c10d: Any = torch.distributed
    c10d._broadcast_coalesced = _advise(c10d._broadcast_coalesced)
