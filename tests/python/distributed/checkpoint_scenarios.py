"""Distributed checkpoints: saved, and loaded by as many ranks or fewer.

`TEST_CHECKPOINT` names the folder that one launch saves to and others load.
"""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from scenarios import batch, model
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

LARGEST_OP_BYTES = {}
KINDS = ("save", "async_save")


def make(device, world):
    mesh = init_device_mesh(device, (world,))
    module = model().to(device)
    for each in (*module, module):
        fully_shard(each, mesh=mesh)
    return module, torch.optim.AdamW(module.parameters(), lr=1e-2)


def trained(device, rank, world):
    module, optimizer = make(device, world)
    for step in range(2):
        module(batch(step, rank, device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return module, optimizer


def save(kind, module, optimizer, path):
    weights, state = states.get_state_dict(module, optimizer)
    done = getattr(dcp, kind)({"m": weights, "o": state}, checkpoint_id=path)
    if kind == "async_save":
        done.result()
    if dist.get_world_size() > 1:
        dist.barrier()
    return weights, state


def load(module, optimizer, path):
    weights, state = states.get_state_dict(module, optimizer)
    both = {"m": weights, "o": state}
    dcp.load(both, checkpoint_id=path)
    states.set_state_dict(
        module,
        optimizer,
        model_state_dict=both["m"],
        optim_state_dict=both["o"],
    )
    return states.get_state_dict(module, optimizer)


def checkpoint_and_back(device, rank, world):
    """Saved, also in the background, and loaded into a new model."""
    trained_pair = trained(device, rank, world)
    results = [[p.full_tensor() for p in trained_pair[0].parameters()]]
    for kind in KINDS:
        path = f"{os.environ['TEST_FOLDER']}/{kind}"
        save(kind, *trained_pair, path)
        results.append(load(*make(device, world), path))
    return results


def checkpoint_saved(device, rank, world):
    trained_pair = trained(device, rank, world)
    return [
        save(kind, *trained_pair, f"{os.environ['TEST_CHECKPOINT']}/{kind}")
        for kind in KINDS
    ]


def checkpoint_loaded(device, rank, world):
    return [
        load(*make(device, world), f"{os.environ['TEST_CHECKPOINT']}/{kind}")
        for kind in KINDS
    ]


def checkpoint_loaded_whole(device, rank, world):
    """Into a model without shards."""
    results = []
    for kind in KINDS:
        module = model().to(device)
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        path = f"{os.environ['TEST_CHECKPOINT']}/{kind}"
        results.append(load(module, optimizer, path))
    return results
