"""A folder of tensors, by distributed checkpoints' writer and reader.

Their `save` and `load` are for all ranks together, and warn those who are not.
"""

from pathlib import Path

import torch


def save(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Writes them; files are synchronized, the index comes last.

    Args:
        tensors: By name.
        folder: Is made.
    """
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    writer = FileSystemWriter(folder)
    planner = DefaultSavePlanner(flatten_state_dict=False)
    planner.set_up_planner(tensors, is_coordinator=True)
    writer.set_up_storage_writer(True)
    plan = writer.prepare_local_plan(planner.create_local_plan())
    plans, metadata = planner.create_global_plan([plan])
    (plan,) = writer.prepare_global_plan(plans)
    written = writer.write_data(planner.finish_plan(plan), planner)
    writer.finish(metadata, [written.wait()])


def load(folder: Path) -> dict[str, torch.Tensor]:
    """What `save` wrote.

    Args:
        folder: Where.
    """
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    reader = FileSystemReader(folder)
    metadata = reader.read_metadata()
    tensors = {
        key: torch.empty(each.size, dtype=each.properties.dtype)
        for key, each in metadata.state_dict_metadata.items()
        if isinstance(each, TensorStorageMetadata)
    }
    planner = DefaultLoadPlanner(flatten_state_dict=False)
    planner.set_up_planner(tensors, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, True)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    (plan,) = reader.prepare_global_plan(planner.create_global_plan([plan]))
    reader.read_data(planner.finish_plan(plan), planner).wait()
    return tensors
