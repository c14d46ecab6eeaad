"""`torch.distributed` on chameleon: each group has its backend.

Torch makes the backend that a script names, or that this device needs: NCCL on
CUDA, gloo on the CPU. Beside it every group gets one more, for chameleon's
tensors (`backend/distributed/`), which works through that very one. It connects
to nobody, so it costs a program nothing that has no such tensors. A simulated
device has no bytes to send: there the group's own backend is for CPU tensors
and objects alone, and may be torch's "fake" one, of any size in one process.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed

from torch_chameleon import _C

_NAME = "chameleon"


def _is_cuda() -> bool:
    """Whether "cuda" means chameleon in this process."""
    return torch.device("cuda") == torch.device(_NAME)


def _has_gpu() -> bool:
    count: Callable[[], int] | None
    count = getattr(torch._C, "_cuda_getDeviceCount", None)
    return count is not None and count() > 0


def _place_names(
    init: Callable[[Any, Any], None],
) -> Callable[[Any, Any], None]:
    """`BackendConfig`: which backends torch makes, by device."""

    @functools.wraps(init)
    def placed(self: Any, backend: Any) -> None:
        init(self, backend)
        devices: dict[str, str] = self.device_backend_map
        named = devices.pop(_NAME, None)
        is_for_cuda = _is_cuda() and "cuda" in devices
        no_nccl = devices.get("cuda") == "nccl" and not _has_gpu()
        if named is None and not is_for_cuda and not no_nccl:
            return
        if _C.chooses_cuda():
            devices.setdefault("cuda", "gloo" if named == "gloo" else "nccl")
        elif is_for_cuda or no_nccl:
            del devices["cuda"]
            devices.setdefault("cpu", "gloo")
        if named is not None:  # objects and CPU tensors go there
            devices.setdefault("cpu", "gloo")

    return placed


def _types_of(group: Any) -> set[str]:
    return {device.type for device in group._device_types}


def _name_what_there_is(group: Any, types: set[str]) -> None:
    """A group asks its first backend for hooks, and warns where it has none.

    It takes NCCL for that where a script named it, though gloo stands for it.
    """
    from torch.distributed import distributed_c10d as c10d

    if c10d._world.pg_map[group][0] == "nccl" and "cuda" not in types:
        group._set_default_backend(
            torch.distributed.ProcessGroup.BackendType.GLOO
        )


def _machines_of(ranks: list[int]) -> list[int]:
    """On which machine each is: launchers number them by machine."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE") or 0)
    return [rank // here if here else 0 for rank in ranks]


def _add_backend(group: Any, ranks: list[int]) -> None:
    """Over the group's backend of the device that chameleon is made of."""
    types = _types_of(group)
    _name_what_there_is(group, types)
    place = "cuda" if _C.chooses_cuda() and "cuda" in types else "cpu"
    if _NAME in types or place not in types:
        return
    simulated = _C.get_option("physical_device") == "simulated"
    inner: Any
    if simulated:
        inner = _C.SimulatedNetwork(group.rank(), _machines_of(ranks))
    else:
        inner = group._get_backend(torch.device(place))
    name, description = group.group_name, group.group_desc
    kinds = torch.distributed.ProcessGroup.BackendType
    group._register_backend(
        torch.device(_NAME),
        # A group has one backend of a kind, and "fake" is a custom one.
        kinds.UNDEFINED if simulated else kinds.CUSTOM,
        _C.ProcessGroup(inner, simulated or inner.name().startswith("nccl")),
    )
    group._set_group_name(name)  # each backend keeps it, and any is asked
    group._set_group_desc(description)


def _make_ours_too(make: Callable[..., Any]) -> Callable[..., Any]:
    """`_new_process_group_helper`."""

    @functools.wraps(make)
    def made(*args: Any, device_id: Any = None, **kwargs: Any) -> Any:
        # Of the device torch wants to know what NCCL connects at once.
        ours = device_id is not None and device_id.type in (_NAME, "cuda")
        if ours and _C.chooses_cuda():
            device_id = torch.device("cuda", device_id.index)
        elif ours and not _has_gpu():
            device_id = None
        group, store = make(*args, device_id=device_id, **kwargs)
        if isinstance(group, torch.distributed.ProcessGroup):
            _add_backend(group, args[2] or list(range(group.size())))
            if ours and device_id is None:  # for what asks whether there is one
                group.bound_device_id = torch.device(_NAME, 0)
        return group, store

    return made


def _split_ours_too(split: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(split)
    def done(*args: Any, **kwargs: Any) -> Any:
        group = split(*args, **kwargs)
        if group is not None:
            ranks = torch.distributed.get_process_group_ranks(group)
            _add_backend(group, ranks)
        return group

    return done


def _find_for_cuda(
    find: Callable[[Any, Any], Any],
) -> Callable[[Any, Any], Any]:
    """`ProcessGroup._get_backend`: torch asks for CUDA's by name.

    It does so where it thinks of NCCL alone. A group of chameleon's without it
    gives gloo.
    """

    @functools.wraps(find)
    def found(self: Any, device: Any) -> Any:
        if device.type == "cuda":
            types = _types_of(self)
            if "cuda" not in types and _NAME in types:
                device = torch.device("cpu")
        return find(self, device)

    return found


def _leave_objects(find: Callable[[Any], str]) -> Callable[[Any], str]:
    """`_get_object_coll_device`: what it was without this device's backend."""

    @functools.wraps(find)
    def found(group: Any = None) -> str:
        place = find(group)
        if place != _NAME:
            return place
        group = group or torch.distributed.group.WORLD
        return next(iter(sorted(_types_of(group) - {_NAME})), place)

    return found


def _made_elsewhere(*_: Any) -> None:
    raise AssertionError("BackendConfig names torch's own in its place")


def install() -> None:
    """Once a process."""
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d

    distributed_c10d.Backend.register_backend(
        _NAME, _made_elsewhere, extended_api=True, devices=[_NAME]
    )
    c10d: Any = distributed_c10d
    c10d.BackendConfig.__init__ = _place_names(c10d.BackendConfig.__init__)
    c10d._new_process_group_helper = _make_ours_too(
        c10d._new_process_group_helper
    )
    c10d._get_object_coll_device = _leave_objects(c10d._get_object_coll_device)
    c10d.split_group = _split_ours_too(c10d.split_group)
    torch.distributed.split_group = c10d.split_group
    group: Any = torch.distributed.ProcessGroup
    group._get_backend = _find_for_cuda(group._get_backend)
