"""A replica among others, by torchft: quorum, averages, healing from a peer."""

import logging
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torchft import Manager, ProcessGroupGloo

from torch_chameleon import _C
from torch_chameleon.elastic._replicas import REPLICA_VARIABLE, meet


class ReplicaGroup(ProcessGroupGloo):
    """torchft's group over gloo, which has a backend for chameleon, too."""

    def _create_pg(self, store: Any, rank: int, world_size: int) -> Any:
        group = super()._create_pg(store, rank, world_size)
        inner = group._get_backend(torch.device("cpu"))
        group._register_backend(
            torch.device("chameleon"),
            dist.ProcessGroup.BackendType.CUSTOM,
            _C.ProcessGroup(inner, False),
        )
        return group


class Replica(Manager):
    """torchft's manager of a replica that is one process."""

    def __init__(self, timeout_seconds: float):
        """Finds the others by the launcher's lighthouse.

        Args:
            timeout_seconds: How long it waits for another one.
        """
        for name in ("torchft", "torchft.manager"):  # lines for each step
            logging.getLogger(name).setLevel(logging.WARNING)
        timeout = timedelta(seconds=timeout_seconds)
        meet(timeout)
        store = dist.TCPStore(  # type: ignore[attr-defined]
            "127.0.0.1", 0, is_master=True, wait_for_workers=False
        )
        super().__init__(
            pg=ReplicaGroup(timeout=timeout),
            load_state_dict=None,
            state_dict=None,
            min_replica_size=1,
            # Who heals has the others' state before it draws a batch.
            use_async_quorum=False,
            timeout=timeout,
            quorum_timeout=timeout,
            rank=0,
            world_size=1,
            store_addr="127.0.0.1",
            store_port=store.port,
            hostname="127.0.0.1",
            replica_id=f"replica_{os.environ[REPLICA_VARIABLE]}",
        )
        self._own_store = store
