"""A rank of many on a simulated GPU: what a step takes, what a rank less would.

Usage: simulated_rank.py RANKS BUDGET_MIB. Rank 0 takes its part of 12
micro-batches of a model that FSDP2 shards, and prints the nanoseconds of the
last step, the slowdown that the model says of a rank less, and how many bytes
were live at a time.
"""

import json
import sys
import warnings

import torch
import torch.distributed as dist
import torch_chameleon
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch_chameleon.elastic import _measuring

MICRO_BATCHES, STEPS, LAYERS, WIDTH, SAMPLES = 12, 14, 8, 2048, 4096


def shard(model, world):
    mesh = init_device_mesh("chameleon", (world,))
    for part in model:
        fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def block():
    return nn.Sequential(
        nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
    )


def main(world, budget):
    warnings.simplefilter("ignore")
    torch_chameleon.config.physical_device = "simulated"
    torch_chameleon.config.hbm_budget = int(budget) << 20
    world = int(world)
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    model = nn.Sequential(*(block() for _ in range(LAYERS))).to("chameleon")
    model = shard(model, world)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(STEPS):
        for _ in range(MICRO_BATCHES // world):
            x = torch.randn(SAMPLES, WIDTH, device="chameleon")
            model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    step = torch_chameleon.profiler.last_step()
    slowdown = _measuring.slowdown(0, world, is_sharded=True)
    stats = torch_chameleon.swap_stats()
    print(
        json.dumps([step["duration_ns"], slowdown, stats["peak_logical_bytes"]])
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
