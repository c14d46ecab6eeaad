"""Tensors on their way to other processes, which have no address to give.

What a process is handed directly (a Pipe, a SimpleQueue, its arguments) is
pickled by the caller, who gets one sentence. A Queue pickles on a thread of its
own, where nobody catches what is raised, and its reader would wait for ever:
DataLoader's workers send their batches so. Here the sentence takes the place of
what was sent, and is raised where that was waited for: in the pickle itself,
since a process that ends reports nothing any more.
"""

import functools
import threading
from collections.abc import Callable
from multiprocessing import queues, reduction
from typing import Any, NoReturn

import torch
from torch._utils import ExceptionWrapper
from torch.multiprocessing import reductions
from torch.utils.data import get_worker_info

from torch_chameleon._patches.guards import refusal

_FEEDER = "QueueFeederThread"  # so does Python name a Queue's thread


class SharingError(RuntimeError):
    """A chameleon tensor was about to leave its process."""

    def __init__(self) -> None:
        super().__init__(refusal("Sharing memory between processes"))


def _guard_sharing(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def guarded(storage: torch.UntypedStorage, *args: Any, **kw: Any) -> Any:
        if storage.device.type == "chameleon":
            raise SharingError
        return function(storage, *args, **kw)

    return guarded


def _raise(text: str) -> NoReturn:
    raise RuntimeError(text)


class _Raises:
    """Raises in the process that unpickles it."""

    def __init__(self, error: SharingError) -> None:
        self.text = str(error)

    def __reduce__(self) -> tuple[Callable[[str], NoReturn], tuple[str]]:
        return _raise, (self.text,)


def _stand_in(sent: Any, error: SharingError) -> Any:
    """What the reader gets instead: a worker's batch is (index, data)."""
    worker = get_worker_info()
    if worker is None or not (isinstance(sent, tuple) and len(sent) == 2):
        return _Raises(error)
    where = f"in DataLoader worker process {worker.id}"
    cause = (RuntimeError, error, error.__traceback__)
    return sent[0], ExceptionWrapper(cause, where)


class _QueuePickler(reduction.ForkingPickler):
    """What multiprocessing.queues pickles with."""

    @classmethod
    def dumps(cls, obj: Any, protocol: int | None = None) -> Any:
        try:
            return super().dumps(obj, protocol)
        except SharingError as error:
            if threading.current_thread().name != _FEEDER:
                raise  # to the caller, who puts into a SimpleQueue
            return super().dumps(_stand_in(obj, error), protocol)


def install() -> None:
    """Puts the guards in place; once a process."""
    # Pickling for another process ends in one of these.
    for name in ("_share_fd_cpu_", "_share_filename_cpu_", "_share_cuda_"):
        method = getattr(torch.UntypedStorage, name)
        setattr(torch.UntypedStorage, name, _guard_sharing(method))
    # This one rebuilds empty storages on the CPU.
    reduction.register(
        torch.UntypedStorage, _guard_sharing(reductions.reduce_storage)
    )
    vars(queues)["_ForkingPickler"] = _QueuePickler
