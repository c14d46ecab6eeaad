"""nn.DataParallel, whose replicas torch makes of CUDA's collectives.

Torch takes every accelerator for one that has them. Without a GPU it leaves
modules where they are and calls them, which is right for modules on the CPU
still when the device is registered, and for a module on one device. Several
are refused.
"""

import functools
import importlib
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from torch_chameleon import chameleon

_Device = int | torch.device


def _place_of(module: torch.nn.Module) -> torch.device | None:
    """The chameleon device that a module's first tensor is on."""
    first = next(chain(module.parameters(), module.buffers()), None)
    if first is None or first.device.type != "chameleon":
        return None
    return first.device


def _leave_out(find: Callable[[], str | None]) -> Callable[[], str | None]:
    @functools.wraps(find)
    def found() -> str | None:
        kind = find()
        return None if kind == "chameleon" else kind

    return found


def _refuse(count: int, place: torch.device) -> None:
    if count > 1:
        raise RuntimeError(
            f"nn.DataParallel does not spread a module over {count} chameleon "
            "devices: use DistributedDataParallel, with a process for each, "
            f"or give it device_ids=[{place.index}]."
        )


def _refuse_several(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def checked(
        self: torch.nn.DataParallel[Any],
        module: torch.nn.Module,
        device_ids: Sequence[_Device] | None = None,
        output_device: _Device | None = None,
        dim: int = 0,
    ) -> None:
        init(self, module, device_ids, output_device, dim)
        place = _place_of(module)
        if place is None:
            return
        _refuse(len(device_ids or range(chameleon.device_count())), place)

    return checked


def _check_and_move(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def moving(
        self: torch.nn.DataParallel[Any], *inputs: Any, **kwargs: Any
    ) -> Any:
        device = _place_of(self.module)
        if device is not None and self.device_ids:
            _refuse(len(self.device_ids), device)  # it was moved there later
        elif device is not None:
            inputs, kwargs = tree_map_only(
                torch.Tensor,
                lambda tensor: tensor.to(device),
                (inputs, kwargs),
            )
        return forward(self, *inputs, **kwargs)

    return moving


def install() -> None:
    """Changes DataParallel; once a process."""
    # torch.nn.parallel has a function of the module's name.
    module: Any = importlib.import_module("torch.nn.parallel.data_parallel")
    module._get_available_device_type = _leave_out(
        module._get_available_device_type
    )
    wrapper: Any = module.DataParallel
    wrapper.__init__ = _refuse_several(wrapper.__init__)
    wrapper.forward = _check_and_move(wrapper.forward)
