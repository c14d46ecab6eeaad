"""Values from images into tensors, by distributed checkpoints' planner."""

import torch

from torch_chameleon.elastic._image import Image


def fill(targets: dict[str, torch.Tensor], images: list[Image]) -> None:
    """Copies into each tensor what it needs, straight from the images.

    Which part of a sharded tensor is where, and who needs it now, is settled by
    the planner of `torch.distributed.checkpoint`.

    Args:
        targets: Tensors, by the keys of pieces.
        images: Where the pieces are; of those that several have the first
            counts.
    """
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        Metadata,
        TensorProperties,
        TensorStorageMetadata,
    )

    if not targets:
        return
    values: dict[tuple[str, torch.Size], torch.Tensor] = {}
    tensors: dict[str, TensorStorageMetadata] = {}
    for image in images:
        for number, piece in enumerate(image.pieces):
            key, offsets = piece.key, torch.Size(piece.offsets)
            if key not in targets or (key, offsets) in values:
                continue
            values[key, offsets] = image.values(number)
            tensors.setdefault(
                key,
                TensorStorageMetadata(
                    TensorProperties(dtype=piece.dtype),
                    torch.Size(piece.size),
                    [],
                ),
            ).chunks.append(
                ChunkStorageMetadata(offsets, torch.Size(piece.part))
            )
    planner = DefaultLoadPlanner(flatten_state_dict=False)
    planner.set_up_planner(targets, Metadata({**tensors}), is_coordinator=True)
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
