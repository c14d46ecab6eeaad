"""What several ranks do: each collective, and each way to train.

A scenario takes (device, rank, world) and returns what must equal native's in
every bit. The same code runs natively on the CPU and on chameleon.
"""

import contextlib
import itertools
import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import gelu
from torch.nn.parallel import DistributedDataParallel

WIDTH = 64
# One op of torch's own needs so much: DDP copies all parameters of a model
# into one tensor, FSDP2 those of a group.
LARGEST_OP_BYTES = {
    "ddp_bucket_view": 1100 << 10,
    "zero_redundancy": 1100 << 10,
    "soak": 1100 << 10,
    "fsdp2_cpu_offload": 300 << 10,
    "sequence_parallel": 150 << 10,
}


def values(device, rank, *shape, seed=0, dtype=torch.float32):
    draws = torch.Generator().manual_seed(1000 * seed + rank)
    if not dtype.is_floating_point:
        return torch.randint(0, 50, shape, generator=draws, dtype=dtype).to(
            device
        )
    return torch.randn(*shape, generator=draws).to(dtype).to(device)


# ---- collectives ----------------------------------------------------------


def broadcast(device, rank, world):
    tensors = [values(device, rank, 33, seed=s) for s in range(world)]
    for source, tensor in enumerate(tensors):
        dist.broadcast(tensor, source)
    part = values(device, rank, 8, 8)
    dist.broadcast(part[2:4], 0)  # a slice: what is around it stays
    return tensors, part


def all_reduce(device, rank, world):
    results = []
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
            tensor = values(device, rank, 100, dtype=dtype)
            dist.all_reduce(tensor, op)
            results.append(tensor)
    flags = values(device, rank, 9, dtype=torch.int32)
    dist.all_reduce(flags, dist.ReduceOp.BOR)
    work = dist.all_reduce(results[0], async_op=True)
    work.wait()
    future = dist.all_reduce(results[0], async_op=True).get_future()
    return results, flags, future.wait()[0], work.is_completed()


def all_reduce_sparse(device, rank, world):
    tensor = torch.sparse_coo_tensor(
        [[rank, rank + 1]], [1.0, 2.0 + rank], (world + 2,)
    ).to(device)
    dist.all_reduce(tensor)
    return tensor.coalesce().to_dense()


def all_reduce_coalesced(device, rank, world):
    tensors = [values(device, rank, n, seed=n) for n in (5, 50, 500)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    return tensors


def reduce(device, rank, world):
    tensor = values(device, rank, 40)
    dist.reduce(tensor, world - 1)
    return tensor if rank == world - 1 else None


def all_gather(device, rank, world):
    mine = values(device, rank, 3, 4)
    lists = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(lists, mine)
    flat = torch.empty(3 * world, 4, device=device)
    dist.all_gather_into_tensor(flat, mine)
    in_place = torch.zeros(world, 5, device=device)
    in_place[rank] = rank + 1
    dist.all_gather_into_tensor(in_place.view(-1), in_place[rank])
    return lists, flat, in_place


def gather_and_scatter(device, rank, world):
    mine = values(device, rank, 7)
    gathered = [torch.empty(7, device=device) for _ in range(world)]
    dist.gather(mine, gathered if rank == 0 else None, 0)
    out = torch.empty(7, device=device)
    dist.scatter(out, gathered if rank == 0 else None, 0)
    return gathered if rank == 0 else None, out


def reduce_scatter(device, rank, world):
    flat = values(device, rank, 6 * world)
    out = torch.empty(6, device=device)
    dist.reduce_scatter_tensor(out, flat)
    listed = torch.empty(6, device=device)
    dist.reduce_scatter(listed, list(flat.chunk(world)))
    return out, listed


def all_to_all_single(device, rank, world):
    sent = values(device, rank, sum(range(1, world + 1)), 2)
    counts = list(range(1, world + 1))
    received = torch.empty(world * (rank + 1), 2, device=device)
    dist.all_to_all_single(received, sent, [rank + 1] * world, counts)
    return received


def point_to_point(device, rank, world):
    right, left = (rank + 1) % world, (rank - 1) % world
    got = torch.empty(11, device=device)
    pairs = [
        dist.P2POp(dist.isend, values(device, rank, 11), right),
        dist.P2POp(dist.irecv, got, left),
    ]
    for work in dist.batch_isend_irecv(pairs):
        work.wait()
    early = torch.zeros(5, device=device)
    waiting = dist.irecv(early, left)  # before the peer sends
    busy = values(device, rank, 64, 64)
    for _ in range(3):
        busy = busy @ busy / 64
    dist.isend(busy[0, :5].contiguous(), right).wait()
    waiting.wait()
    anyone = torch.zeros(3, device=device)
    if rank == 0:
        source = dist.recv(anyone)
    else:
        source = 1
        if rank == 1:
            dist.send(torch.full((3,), 7.0, device=device), 0)
    return got, early, anyone, source


def objects(device, rank, world):
    everyone = [None] * world
    dist.all_gather_object(everyone, {"rank": rank})
    box = [torch.arange(3.0), "x"] if rank == 0 else [None, None]
    dist.broadcast_object_list(box, 0)
    return everyone, box


def groups(device, rank, world):
    pair = dist.new_group([0, 1])
    tensor = values(device, rank, 10)
    if rank < 2:
        dist.all_reduce(tensor, group=pair)
    dist.barrier()
    mesh = init_device_mesh(device, (world // 2, 2), mesh_dim_names=("a", "b"))
    other = values(device, rank, 10, seed=1)
    dist.all_reduce(other, group=mesh.get_group("b"))
    dist.all_reduce(other, group=mesh.get_group("a"))
    return tensor, other


def functional_collectives(device, rank, world):
    tensor = values(device, rank, 8, world)
    group = dist.group.WORLD
    return (
        functional.all_reduce(tensor, "sum", group),
        functional.all_gather_tensor(tensor, 0, group),
        functional.reduce_scatter_tensor(tensor, "sum", 0, group)
        if world in (2, 4)
        else None,
        functional.all_to_all_single(tensor, None, None, group),
        functional.broadcast(tensor, 0, group),
    )


def interleaved(device, rank, world):
    """Collectives of several groups, under way at once, in another order."""
    count = 3
    several = [dist.new_group(list(range(world))) for _ in range(count)]
    results = []
    order = torch.Generator()
    for round_number in range(20):
        order.manual_seed(100 * round_number + rank)  # each rank its own
        tensors = [
            values(device, rank, 2000, seed=round_number * count + g)
            for g in range(count)
        ]
        works = [None] * count
        for g in torch.randperm(count, generator=order).tolist():
            works[g] = dist.all_reduce(
                tensors[g], group=several[g], async_op=True
            )
        noise = values(device, rank, 2000).exp()
        for g in torch.randperm(count, generator=order).tolist():
            works[g].wait()
        results.append([tensor + noise * 0 for tensor in tensors])
    return results


_anew = itertools.count()


def groups_made_anew(device, rank, world):
    """All groups destroyed, and made again: nothing of theirs is left."""
    store = dist.distributed_c10d._get_default_store()
    results = []
    for _ in range(3):
        tensor = values(device, rank, 100)
        dist.all_reduce(tensor, async_op=True)  # nobody waits for it
        dist.barrier()
        dist.destroy_process_group()
        results.append((tensor, len(os.listdir("/proc/self/task"))))
        dist.init_process_group(
            "gloo" if device == "cpu" else None,
            store=dist.PrefixStore(f"anew{next(_anew)}", store),
            rank=rank,
            world_size=world,
        )
        dist.all_reduce(tensor, group=dist.new_group(list(range(world))))
    assert len({threads for _, threads in results}) == 1
    return [tensor for tensor, _ in results]


# ---- training -------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(gelu(self.up(self.norm(x))))


def model(blocks=4):
    torch.manual_seed(0)
    return nn.Sequential(*[Block(WIDTH) for _ in range(blocks)])


def batch(step, rank, device):
    return values(device, rank, 8, WIDTH, seed=step + 1)


def train(module, device, rank, *, parameters=None, steps=3, foreach=True):
    """Losses, parameters, gradients' norm and the optimizer's state."""
    parameters = list(parameters or module.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, foreach=foreach)
    losses = []
    for step in range(steps):
        loss = module(batch(step, rank, device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses, parameters, list(optimizer.state_dict()["state"].values())


def ddp(device, rank, **arguments):
    return train(
        DistributedDataParallel(model().to(device), **arguments), device, rank
    )


def ddp_plain(device, rank, world):
    return ddp(device, rank)


def ddp_device_ids(device, rank, world):
    if device == "cpu":
        return ddp(device, rank)
    index = torch.accelerator.current_device_index()
    return ddp(device, rank, device_ids=[index], output_device=index)


def ddp_bucket_view(device, rank, world):
    return ddp(device, rank, gradient_as_bucket_view=True)


def ddp_static_graph(device, rank, world):
    return ddp(device, rank, static_graph=True)


def ddp_find_unused(device, rank, world):
    return ddp(device, rank, find_unused_parameters=True)


def ddp_small_buckets(device, rank, world):
    return ddp(device, rank, bucket_cap_mb=0.05)


def ddp_no_sync_and_clip(device, rank, world):
    module = DistributedDataParallel(model().to(device))
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    norms = []
    for step in range(4):
        with contextlib.nullcontext() if step % 2 else module.no_sync():
            module(batch(step, rank, device)).square().mean().backward()
        if step % 2:
            norms.append(nn.utils.clip_grad_norm_(module.parameters(), 0.1))
            optimizer.step()
            optimizer.zero_grad()
    return norms, list(module.parameters())


def ddp_dropout_and_buffers(device, rank, world):
    """Random numbers of each rank, and batch norm's buffers from rank 0."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 4)
    ).to(device)
    module = DistributedDataParallel(net)
    torch.manual_seed(rank)
    results = train(module, device, rank)
    return results, list(net.buffers()), torch.get_rng_state()


def ddp_hook_bf16(device, rank, world):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    module = DistributedDataParallel(model().to(device))
    module.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return train(module, device, rank)


def ddp_hook_of_ones_own(device, rank, world):
    def halved(state, bucket):
        work = dist.all_reduce(bucket.buffer().div_(world), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    module = DistributedDataParallel(model().to(device))
    module.register_comm_hook(None, halved)
    return train(module, device, rank)


def ddp_checkpointed(device, rank, world):
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = model()

        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return x

    module = DistributedDataParallel(Checkpointed().to(device))
    return train(module, device, rank)


def ddp_sparse_embedding(device, rank, world):
    torch.manual_seed(0)
    table = nn.Embedding(32, 8, sparse=True).to(device)
    module = DistributedDataParallel(table)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for step in range(2):
        rows = values(device, rank, 6, seed=step, dtype=torch.int64) % 32
        module(rows).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(module.parameters())


def zero_redundancy(device, rank, world):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    module = DistributedDataParallel(model().to(device))
    optimizer = ZeroRedundancyOptimizer(
        module.parameters(), torch.optim.AdamW, lr=1e-2
    )
    for step in range(3):
        module(batch(step, rank, device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(module.parameters())


def fsdp2(device, rank, world, mesh=None, **arguments):
    from torch.distributed.fsdp import fully_shard

    mesh = mesh or init_device_mesh(device, (world,))
    module = model().to(device)
    for block in module:
        fully_shard(block, mesh=mesh, **arguments)
    fully_shard(module, mesh=mesh, **arguments)
    return train(module, device, rank)


def fsdp2_plain(device, rank, world):
    return fsdp2(device, rank, world)


def fsdp2_keep_gathered(device, rank, world):
    return fsdp2(device, rank, world, reshard_after_forward=False)


def fsdp2_bf16(device, rank, world):
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    return fsdp2(device, rank, world, mp_policy=policy)


def fsdp2_cpu_offload(device, rank, world):
    from torch.distributed.fsdp import CPUOffloadPolicy

    return fsdp2(
        device, rank, world, offload_policy=CPUOffloadPolicy(pin_memory=False)
    )


def hybrid_sharding(device, rank, world):
    mesh = init_device_mesh(
        device, (world // 2, 2), mesh_dim_names=("replicate", "shard")
    )
    return fsdp2(device, rank, world, mesh=mesh)


def tensor_parallel(device, rank, world, mesh=None):
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = mesh or init_device_mesh(device, (world,))
    module = model().to(device)
    for block in module:
        parallelize_module(
            block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()}
        )
    return train(module, device, 0, foreach=False)


def sequence_parallel(device, rank, world):
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh(device, (world,))
    module = nn.Sequential(model(1)[0]).to(device)
    parallelize_module(
        module[0],
        mesh,
        {
            "norm": SequenceParallel(sequence_dim=0),
            "up": ColwiseParallel(input_layouts=Shard(0)),
            "down": RowwiseParallel(),
        },
    )
    x = batch(0, 0, device)
    block = module[0]
    out = block.down(gelu(block.up(block.norm(x))))
    out.square().mean().backward()
    return [parameter.grad for parameter in module.parameters()]


def two_dimensions(device, rank, world):
    """Tensor parallelism within, FSDP2 across."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh(device, (world // 2, 2), mesh_dim_names=("d", "t"))
    module = model().to(device)
    for block in module:
        parallelize_module(
            block,
            mesh["t"],
            {"up": ColwiseParallel(), "down": RowwiseParallel()},
        )
        fully_shard(block, mesh=mesh["d"])
    fully_shard(module, mesh=mesh["d"])
    return train(module, device, rank // 2, foreach=False)


def soak(device, rank, world, steps=200):
    """DDP for many steps; each rank has budgets, and drops, of its own."""
    module = DistributedDataParallel(model().to(device), bucket_cap_mb=0.2)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    draws = torch.Generator().manual_seed(rank)
    losses = []
    for step in range(steps):
        if device == "chameleon" and step % 7 == 0:
            import torch_chameleon
            from torch_chameleon import _testing

            mib = 1.1 + 3 * torch.rand((), generator=draws).item()
            torch_chameleon.config.hbm_budget = int(mib * 2**20)
            _testing.set_drop_stress("random" if step % 2 else "never", step)
        loss = module(batch(step, rank, device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    if device == "chameleon":
        _testing.set_drop_stress("never", 0)
    return losses, list(module.parameters()), optimizer.state_dict()["state"]
