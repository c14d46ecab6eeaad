"""`torch.distributed` where a script says "cuda" and "nccl"."""

import functools
from typing import Any

import torch.distributed as dist

from torch_chameleon._as_cuda.names import ours_for


def install() -> None:
    """Turns it on, for the rest of the process."""
    if not dist.is_available():
        return
    module: Any = dist
    original = module.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **options: Any) -> None:
        if "device_id" in options:
            options["device_id"] = ours_for(options["device_id"])
        original(*args, **options)

    module.distributed_c10d.init_process_group = init_process_group
    module.init_process_group = init_process_group
    # What scripts ask before they name "nccl", which gloo stands for.
    module.distributed_c10d.is_nccl_available = lambda: True
    module.is_nccl_available = module.distributed_c10d.is_nccl_available
