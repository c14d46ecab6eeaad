"""Attention whose operands are sharded over ranks (DTensor).

Torch knows for each of CUDA's kernels of attention that its heads, or its
sequences, may lie on several ranks, and for the one of other devices nothing.
"""

from typing import Any

import torch

from torch_chameleon._patches.after_import import after_import

_FORWARD = "_scaled_dot_product_fused_attention_overrideable"
_BACKWARD = f"{_FORWARD}_backward"
_BATCH, _HEADS = 0, 1  # dimensions of query, key and value


def _splits_heads(query: Any, key: Any) -> bool:
    """Whether each rank has the keys that its queries ask."""
    heads, key_heads = query.shape[_HEADS], key.shape[_HEADS]
    return bool(heads == key_heads or key_heads % key.mesh.size() == 0)


def _placements(query: Any, key: Any, operands: Any) -> list[tuple[Any, Any]]:
    """For results that may be sharded, and for operands.

    Masks, which are expanded, lie where they have the dimension; seeds lie on
    all ranks.
    """
    from torch.distributed.tensor import Replicate, Shard

    ways: list[tuple[Any, Any]] = [(Replicate(), lambda _: Replicate())]
    for dim in (_BATCH, _HEADS):
        if query.shape[dim] == 1 or (
            dim == _HEADS and not _splits_heads(query, key)
        ):
            continue

        def place(tensor: Any, dim: int = dim) -> Any:
            is_whole = tensor.ndim < 3 or tensor.shape[dim] == 1
            return Replicate() if is_whole else Shard(dim)

        ways.append((Shard(dim), place))
    return [
        (
            result,
            # Not the numbers among them, or the tensors that are not given.
            [place(x) if hasattr(x, "placements") else None for x in operands],
        )
        for result, place in ways
    ]


def _forward(*operands: Any, **options: Any) -> list[tuple[Any, Any]]:
    from torch.distributed.tensor import Replicate

    query, key = operands[:2]
    # Output, its logarithms, four numbers, the seed and its offset, a mask.
    seeds = [Replicate(), Replicate()]
    return [
        ([result, result, None, None, None, None, *seeds, None], placed)
        for result, placed in _placements(query, key, operands)
    ]


def _backward(*operands: Any, **options: Any) -> list[tuple[Any, Any]]:
    _, query, key = operands[:3]
    return [
        ([result, result, result, None], placed)
        for result, placed in _placements(query, key, operands)
    ]


def _register(_: object) -> None:
    from torch.distributed.tensor.experimental import register_sharding

    for name, shardings in ((_FORWARD, _forward), (_BACKWARD, _backward)):
        register_sharding(getattr(torch.ops.aten, name).default)(shardings)


def install() -> None:
    """Once a process."""
    after_import("torch.distributed.tensor", _register)
