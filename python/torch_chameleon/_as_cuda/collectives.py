"""What `nn.DataParallel` and its functions are made of, over chameleon devices.

`torch.nn.parallel` (replicate, scatter, gather) and its `comm` end in functions
of torch's C++ code that are for CUDA alone; where torch was built without it,
there are none. These copy from device to device, as those do without NCCL, and
`comm` is told that there is none.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.cuda import nccl

from torch_chameleon import chameleon

_CPU = -1


def _place(index: int) -> torch.device:
    if index == _CPU:
        return torch.device("cpu")
    return torch.device("chameleon", index)


def _broadcast(tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
    return [tensor.to(_place(index)) for index in devices]


def _broadcast_out(tensor: Tensor, out: Sequence[Tensor]) -> list[Tensor]:
    for each in out:
        if each.shape != tensor.shape:
            raise RuntimeError(
                "broadcast: all tensors of `out` must have the shape "
                f"{tuple(tensor.shape)}, but one has {tuple(each.shape)}"
            )
        each.copy_(tensor, non_blocking=True)
    return list(out)


def _broadcast_coalesced(
    tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[Tensor]]:
    first, *others = map(_place, devices)
    for tensor in tensors:
        if tensor.device != first:
            raise RuntimeError(
                "broadcast_coalesced: all tensors must be on devices[0], "
                f"{first}, but one is on {tensor.device}"
            )
    # The tensors themselves, and copies that know nothing of them.
    copies = [
        [tensor.detach().to(device, copy=True) for tensor in tensors]
        for device in others
    ]
    return [list(tensors), *copies]


def _scatter(
    tensor: Tensor,
    devices: Sequence[int],
    chunk_sizes: Sequence[int] | None,
    dim: int,
    streams: object,
) -> list[Tensor]:
    chunks = (
        tensor.chunk(len(devices), dim)
        if chunk_sizes is None
        else tensor.split(list(chunk_sizes), dim)
    )
    return [
        chunk.to(_place(index), non_blocking=True)
        for chunk, index in zip(chunks, devices, strict=False)
    ]


def _scatter_out(
    tensor: Tensor, out: Sequence[Tensor], dim: int, streams: object
) -> list[Tensor]:
    sizes = [each.size(dim) for each in out]
    chunks = tensor.split(sizes, dim)
    for each, chunk in zip(out, chunks, strict=True):
        each.copy_(chunk, non_blocking=True)
    return list(out)


def _check_gathered(tensors: Sequence[Tensor]) -> None:
    if not tensors:
        raise RuntimeError("gather: expected at least one tensor")
    for i, tensor in enumerate(tensors):
        if tensor.device.type != "chameleon":
            raise RuntimeError(
                "gather: all tensors must be on a device, but the one at "
                f"index {i} is on {tensor.device}"
            )


def _gather(
    tensors: Sequence[Tensor], dim: int, destination: int | None
) -> Tensor:
    _check_gathered(tensors)
    if destination is None:
        destination = chameleon.current_device()
    device = _place(destination)
    return torch.cat([tensor.to(device) for tensor in tensors], dim)


def _gather_out(tensors: Sequence[Tensor], out: Tensor, dim: int) -> Tensor:
    _check_gathered(tensors)
    sizes = [tensor.size(dim) for tensor in tensors]
    for chunk, tensor in zip(out.split(sizes, dim), tensors, strict=True):
        chunk.copy_(tensor, non_blocking=True)
    return out


def _has_no_nccl(tensors: Sequence[Tensor]) -> bool:
    """`torch.cuda.nccl.is_available`: devices' sums are made without it."""
    return False


def install() -> None:
    """Turns it on, for the rest of the process."""
    core: Any = torch._C
    nccl.is_available = _has_no_nccl
    for function in (
        *(_broadcast, _broadcast_out, _broadcast_coalesced),
        *(_scatter, _scatter_out, _gather, _gather_out),
    ):
        setattr(core, function.__name__, function)
