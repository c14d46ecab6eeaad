"""Other parts of torch that go by a device's name."""

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from torch_chameleon import _C
from torch_chameleon._as_cuda.names import ours_for
from torch_chameleon._patches.after_import import after_import


def _accelerator_takes_cuda() -> None:
    """`torch.accelerator.synchronize("cuda:0")` and its kin."""
    from torch.accelerator import _utils, memory

    original: Any = _utils._get_device_index

    @functools.wraps(original)
    def get_device_index(device: Any, optional: bool = False) -> int:
        index: int = original(ours_for(device), optional)
        return index

    for module in (torch.accelerator, _utils, memory):
        module._get_device_index = get_device_index  # type: ignore[attr-defined]


def _profile_device() -> None:
    """`torch.profiler.profile(activities=[ProfilerActivity.CUDA])`."""
    profile: Any = torch.profiler.profile
    original = profile.__init__

    @functools.wraps(original)
    def init(self: Any, *, activities: Any = None, **options: Any) -> None:
        if isinstance(activities, Iterable):
            activities = [
                ProfilerActivity.PrivateUse1
                if each == ProfilerActivity.CUDA
                else each
                for each in activities
            ]
        original(self, activities=activities, **options)

    profile.__init__ = init


def _checkpoints_fetch_ours(module: Any) -> None:
    """Distributed checkpoints fetch what is on the device, by its name.

    As torch.cuda is there they take CUDA for it, and would write all else as it
    is.
    """
    module._get_available_device_type = lambda: "chameleon"


def install() -> None:
    """Turns it on, for the rest of the process."""
    _accelerator_takes_cuda()
    _C.say_cuda_out_of_memory()
    _profile_device()
    after_import(
        "torch.distributed.checkpoint.filesystem", _checkpoints_fetch_ours
    )
