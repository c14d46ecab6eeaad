"""Values from images into tensors, by distributed checkpoints' planner."""

import math
from collections.abc import Iterable

import torch

from torch_chameleon.elastic._image import Image
from torch_chameleon.elastic._pieces import is_sharded


def fill(targets: dict[str, torch.Tensor], images: Iterable[Image]) -> None:
    """Copies into each tensor what it needs, straight from the images.

    Which part of a sharded tensor is where, and who needs it now, is settled by
    the planner of `torch.distributed.checkpoint`, for one image after the
    other: none is needed any more when the next one is asked for.

    Args:
        targets: Tensors, by the keys of pieces.
        images: Where the pieces are; of those that several have the first
            counts.

    Raises:
        RuntimeError: They have not all values.
    """
    if not targets:
        return
    missing = {key: _part_of(each).numel() for key, each in targets.items()}
    seen: set[tuple[str, torch.Size]] = set()
    for image in images:
        for key, elements in _fill(targets, image, seen):
            missing[key] -= elements
    lacking = sorted(key for key, elements in missing.items() if elements > 0)
    if lacking:
        raise RuntimeError(
            f"elastic.State: {lacking[0]} was not committed whole, nor were "
            f"{len(lacking) - 1} other tensors"
        )


def _fill(
    targets: dict[str, torch.Tensor],
    image: Image,
    seen: set[tuple[str, torch.Size]],
) -> list[tuple[str, int]]:
    """From one image; how many elements of which tensor it had."""
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        Metadata,
        TensorProperties,
        TensorStorageMetadata,
    )

    values: dict[tuple[str, torch.Size], torch.Tensor] = {}
    tensors: dict[str, TensorStorageMetadata] = {}
    for number, piece in enumerate(image.pieces):
        key, offsets = piece.key, torch.Size(piece.offsets)
        if key not in targets or (key, offsets) in seen:
            continue
        seen.add((key, offsets))
        values[key, offsets] = image.values(number)
        tensors.setdefault(
            key,
            TensorStorageMetadata(
                TensorProperties(dtype=piece.dtype), torch.Size(piece.size), []
            ),
        ).chunks.append(ChunkStorageMetadata(offsets, torch.Size(piece.part)))
    planner = DefaultLoadPlanner(flatten_state_dict=False)
    planner.set_up_planner(
        {key: targets[key] for key in tensors},
        Metadata({**tensors}),
        is_coordinator=True,
    )
    found = []
    for item in planner.create_local_plan().items:
        place = item.storage_index
        assert place.offset is not None
        source = values[place.fqn, place.offset]
        for dimension, (start, length) in enumerate(
            zip(item.storage_offsets, item.lengths, strict=True)
        ):
            source = source.narrow(dimension, start, length)
        target = planner.resolve_tensor(item).detach()
        target.copy_(source)
        planner.commit_tensor(item, target)
        found.append((place.fqn, math.prod(item.lengths)))
    return found


def _part_of(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of it."""
    return tensor.to_local() if is_sharded(tensor) else tensor
