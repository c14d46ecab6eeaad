"""DDP's buckets under `plan`: those of its later steps, from the first on.

DDP has one bucket in its first step. Then it makes them anew, in the order in
which gradients came, and tells other ranks which order that is by values on the
device; there are none. So here they are made at once, and stay, in the reverse
order of the parameters, which that order is taken to be.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch.distributed
from torch.nn.parallel import DistributedDataParallel


class Buckets:
    """What takes the place of functions of DDP's."""

    def __init__(self) -> None:
        self._limits: list[int] = []  # of the one that is being made
        self._init: Callable[..., Any]
        self._init = DistributedDataParallel._ddp_init_helper
        distributed: Any = torch.distributed
        self._assign = distributed._compute_bucket_assignment_by_size

    def replacements(self) -> list[tuple[Any, str, Any]]:
        """Owners, names and what to put there."""
        distributed: Any = torch.distributed
        return [
            (distributed.Reducer, "_rebuild_buckets", lambda reducer: False),
            (distributed, "_compute_bucket_assignment_by_size", self._made),
            (
                DistributedDataParallel,
                "_ddp_init_helper",
                self._noting_limits(),
            ),
        ]

    def _noting_limits(self) -> Callable[..., Any]:
        init = self._init

        @functools.wraps(init)
        def noting(ddp: Any, *args: Any, **options: Any) -> Any:
            distributed: Any = torch.distributed
            first = distributed._DEFAULT_FIRST_BUCKET_BYTES
            cap = ddp.bucket_bytes_cap
            self._limits = [first if ddp.bucket_bytes_cap_default else cap, cap]
            return init(ddp, *args, **options)

        return noting

    def _made(
        self,
        tensors: list[Any],
        limits: list[int],
        expect_sparse: list[bool] | None = None,
        *rest: Any,
    ) -> tuple[list[list[int]], list[int]]:
        if limits != [sys.maxsize] or rest:
            found: tuple[list[list[int]], list[int]]
            found = self._assign(tensors, limits, expect_sparse or [], *rest)
            return found
        buckets, sizes = self._assign(
            tensors[::-1], self._limits, (expect_sparse or [])[::-1]
        )
        last = len(tensors) - 1
        # DDP takes the last bucket first.
        return [[last - i for i in each] for each in buckets[::-1]], sizes[::-1]
