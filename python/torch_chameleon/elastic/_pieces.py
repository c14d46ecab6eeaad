"""Tensors of a state, and the parts of sharded ones that a rank has."""

import sys
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import torch

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Path = tuple[str | int, ...]  # of keys, from the root of all that is kept


class Piece(NamedTuple):
    """A tensor, or this rank's part of one that is sharded."""

    path: Path
    dtype: torch.dtype
    device: str  # its type
    is_sharded: bool
    size: tuple[int, ...]  # of all of it
    stride: tuple[int, ...]  # of one that is not sharded
    offsets: tuple[int, ...]  # where the part begins
    part: tuple[int, ...]  # the part's size

    @classmethod
    def of(
        cls, path: Path, tensor: torch.Tensor
    ) -> "tuple[Piece, torch.Tensor]":
        """Describes a tensor.

        Args:
            path: Where it is.
            tensor: Any.

        Returns:
            The piece, and the dense tensor that has its values.

        Raises:
            TypeError: It is none that can be kept.
        """
        whole = tensor.detach()
        if is_sharded(whole):
            part, offsets = _own_part(whole)
            stride: tuple[int, ...] = ()
        elif _is_dense(whole):
            part, offsets = whole, (0,) * whole.dim()
            stride = whole.stride()
        else:
            raise TypeError(
                f"elastic.State: {name_of(path)} is a {type(tensor).__name__} "
                f"on {tensor.device.type}, of layout {tensor.layout}; dense "
                "tensors with values, and DTensors of them, can be kept"
            )
        piece = cls(
            path,
            whole.dtype,
            whole.device.type,
            part is not whole,
            tuple(whole.shape),
            stride,
            offsets,
            tuple(part.shape),
        )
        return piece, part

    @property
    def key(self) -> str:
        """A name that no other tensor has."""
        return repr(self.path)


def name_of(path: Path) -> str:
    """A path, for people."""
    return ".".join(map(str, path))


def is_sharded(value: Any) -> "TypeGuard[DTensor]":
    """Whether it is a DTensor. Where nothing has imported them, it is none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def _is_dense(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.is_meta
    )


def _own_part(tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """A sharded tensor's part on this rank, and where it begins."""
    from torch.distributed.checkpoint.default_planner import (
        DefaultSavePlanner,
    )

    planner = DefaultSavePlanner(flatten_state_dict=False)
    planner.set_up_planner({"": tensor}, is_coordinator=False)
    (item,) = planner.create_local_plan().items
    part = planner.resolve_data(item)
    assert item.tensor_data is not None
    assert isinstance(part, torch.Tensor)
    return part, tuple(item.tensor_data.chunk.offsets)
