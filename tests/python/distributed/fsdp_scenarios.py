"""Both kinds of FSDP: the memory of gathered parameters, and FSDP1's modes."""

import contextlib

import torch
import torch.distributed as dist
from scenarios import Block, batch, model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffload,
    FullStateDictConfig,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp import FullyShardedDataParallel as Fsdp
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

LARGEST_OP_BYTES = {"fsdp2_freed_parameters": 300 << 10}  # a block, twice
STEPS = 3


def adam(module):
    return torch.optim.AdamW(module.parameters(), lr=1e-2)


def run(module, optimizer, device, rank):
    losses = []
    for step in range(STEPS):
        loss = module(batch(step, rank, device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def fsdp2(device, world, **options):
    mesh = init_device_mesh(device, (world,))
    module = model().to(device)
    for each in (*module, module):
        fully_shard(each, mesh=mesh, **options)
    return module


@contextlib.contextmanager
def counted_gathers():
    """A list that is as long as there were gathers; keeps no tensor."""
    gathers = []
    gather = dist.all_gather_into_tensor

    def counted(*given, **options):
        gathers.append(1)
        return gather(*given, **options)

    dist.all_gather_into_tensor = counted
    try:
        yield gathers
    finally:
        dist.all_gather_into_tensor = gather


def fsdp2_gathers(device, rank, world):
    """As many as natively: what does not fit is kept on the host instead."""
    results = []
    for is_resharded in (True, False):
        module = fsdp2(device, world, reshard_after_forward=is_resharded)
        with counted_gathers() as gathers:
            losses = run(module, adam(module), device, rank)
        assert len(gathers) == STEPS * len(module) * (1 + is_resharded)
        results.append(losses)
    return results


class Bytes:
    """Of live tensors, and of evicted ones in blocks of 512, since it was made.

    All but a small one are evicted whenever one looks.
    """

    def __init__(self):
        from torch_chameleon import _testing

        _testing.set_stress("all", 0)
        self.small = torch.zeros(1, device="chameleon")
        self.before = self._now()

    def _now(self):
        import torch_chameleon

        self.small.add_(1)
        torch.chameleon.synchronize()
        stats = torch_chameleon.swap_stats()
        return stats["logical_bytes"], stats["host_bytes"]

    def check(self, *tensors):
        """These were made since then."""
        sizes = [tensor.nbytes for tensor in tensors]
        expected = sum(sizes), sum(-(-size // 512) * 512 for size in sizes)
        found = tuple(
            now - before
            for now, before in zip(self._now(), self.before, strict=True)
        )
        assert found == expected, (found, expected)


def fsdp2_freed_parameters(device, rank, world):
    """Gathered parameters take no memory once they are freed, anywhere."""
    results = []
    for is_resharded in (True, False):
        module = fsdp2(device, world, reshard_after_forward=is_resharded)
        x = batch(0, rank, device)
        if device == "cpu":
            results.append(module(x).detach())
            continue
        results.append(check_freed(module, x, is_resharded))
    return results


@torch.no_grad()
def check_freed(module, x, is_resharded):
    there = Bytes()
    out = module(x)
    there.check(out, *([] if is_resharded else module.parameters()))
    for block in module:
        block.reshard()
    there.check(out)
    return out


def shard(device, **options):
    return Fsdp(
        model().to(device),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=torch.empty(0, device=device).device,
        **options,
    )


def full_state(module, optimizer):
    whole = FullStateDictConfig(rank0_only=False, offload_to_cpu=False)
    with Fsdp.state_dict_type(module, StateDictType.FULL_STATE_DICT, whole):
        return (
            module.state_dict(),
            Fsdp.optim_state_dict(module, optimizer)["state"],
        )


def fsdp1(device, rank, world, **options):
    module = shard(device, **options)
    optimizer = adam(module)
    losses = run(module, optimizer, device, rank)
    return losses, *full_state(module, optimizer)


def may_be_original(device):
    """Not on the CPU: there PyTorch gathers all states of an original parameter
    into the same memory, so that each has the values of the last one."""
    return device != "cpu"


def fsdp1_plain(device, rank, world):
    return fsdp1(device, rank, world)


def fsdp1_gradients_sharded(device, rank, world):
    strategy = ShardingStrategy.SHARD_GRAD_OP
    return fsdp1(device, rank, world, sharding_strategy=strategy)


def fsdp1_original_parameters(device, rank, world):
    return fsdp1(device, rank, world, use_orig_params=may_be_original(device))


def fsdp1_cpu_offload(device, rank, world):
    """To where the parameters are natively, which it does not take there."""
    offload = CPUOffload(offload_params=device != "cpu")
    return fsdp1(device, rank, world, cpu_offload=offload)


def fsdp1_bf16(device, rank, world):
    precision = MixedPrecision(torch.bfloat16, torch.float32)
    return fsdp1(device, rank, world, mixed_precision=precision)


def fsdp1_sharded_state(device, rank, world):
    """Each rank's part of the state, loaded into a new module: as sharded
    tensors, and as DTensors of a mesh."""
    results = []
    for mesh in (None, init_device_mesh(device, (world,))):
        original = mesh is None and may_be_original(device)
        module = shard(device, device_mesh=mesh, use_orig_params=original)
        optimizer = adam(module)
        losses = run(module, optimizer, device, rank)
        with Fsdp.state_dict_type(module, StateDictType.SHARDED_STATE_DICT):
            weights = module.state_dict()
            state = Fsdp.optim_state_dict(module, optimizer)
        other = shard(device, device_mesh=mesh, use_orig_params=original)
        other_optimizer = adam(other)
        with Fsdp.state_dict_type(other, StateDictType.SHARDED_STATE_DICT):
            other.load_state_dict(weights)
            other_optimizer.load_state_dict(
                Fsdp.optim_state_dict_to_load(other, other_optimizer, state)
            )
        results.append((losses, *full_state(other, other_optimizer)))
    return results
