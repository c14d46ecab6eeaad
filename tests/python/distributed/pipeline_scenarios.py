"""Pipelines, of one stage on each rank and of two."""

import torch
from scenarios import batch, model
from torch import nn
from torch.distributed import pipelining

LARGEST_OP_BYTES = {}


def pipeline(device, rank, world, schedule):
    per_rank = 4 // world
    net = model()
    stage_net = nn.Sequential(
        *list(net)[rank * per_rank : (rank + 1) * per_rank]
    ).to(device)
    place = next(stage_net.parameters()).device
    stage = pipelining.PipelineStage(stage_net, rank, world, place)
    runs = getattr(pipelining, schedule)(
        stage, 4, loss_fn=lambda out, target: (out - target).square().mean()
    )
    optimizer = torch.optim.SGD(stage_net.parameters(), lr=1e-2)
    for step in range(2):
        x = batch(step, 0, device)
        if rank == 0:
            runs.step(x)
        elif rank == world - 1:
            runs.step(target=torch.zeros_like(x), losses=[])
        else:
            runs.step()
        optimizer.step()
        optimizer.zero_grad()
    return list(stage_net.parameters())


def pipeline_1f1b(device, rank, world):
    return pipeline(device, rank, world, "Schedule1F1B")


def pipeline_gpipe(device, rank, world):
    return pipeline(device, rank, world, "ScheduleGPipe")


class Stage(pipelining.PipelineStage):
    """Where two neighbours are on one rank it sends to itself when it begins,
    only to connect. NCCL can do that, and gloo cannot."""

    def _get_init_p2p_neighbors_ops(self):
        ops = super()._get_init_p2p_neighbors_ops()
        return [op for op in ops if op.group_peer != self.group_rank]


def two_stages(device, rank, world, schedule, *, in_a_v=False):
    """Each rank has two stages of one block: the second as far behind, or the
    ranks in turn there and back."""
    last = 2 * world - 1
    indices = (rank, last - rank if in_a_v else rank + world)
    net = model(last + 1)
    stage_nets = nn.ModuleList(net[index] for index in indices).to(device)
    place = next(stage_nets.parameters()).device
    stages = [
        Stage(stage_net, index, last + 1, place)
        for stage_net, index in zip(stage_nets, indices, strict=True)
    ]
    runs = getattr(pipelining, schedule)(
        stages,
        2 * world,
        loss_fn=lambda out, target: (out - target).square().mean(),
    )
    optimizer = torch.optim.AdamW(stage_nets.parameters(), lr=1e-2)
    results = []
    for step in range(2):
        x = batch(step, 0, device)
        losses = []
        given = (x,) if 0 in indices else ()
        wanted = {"target": torch.zeros_like(x), "losses": losses}
        runs.step(*given, **(wanted if last in indices else {}))
        optimizer.step()
        optimizer.zero_grad()
        results.append([loss.detach() for loss in losses])
    return results, list(stage_nets.parameters())


def pipeline_interleaved_1f1b(device, rank, world):
    return two_stages(device, rank, world, "ScheduleInterleaved1F1B")


def pipeline_looped_bfs(device, rank, world):
    return two_stages(device, rank, world, "ScheduleLoopedBFS")


def pipeline_interleaved_zero_bubble(device, rank, world):
    return two_stages(device, rank, world, "ScheduleInterleavedZeroBubble")


def pipeline_zbv_zero_bubble(device, rank, world):
    return two_stages(device, rank, world, "ScheduleZBVZeroBubble", in_a_v=True)


def pipeline_dual_pipe_v(device, rank, world):
    return two_stages(device, rank, world, "ScheduleDualPipeV", in_a_v=True)
