"""DDP's gradients compressed on their way, or averaged now and then."""

import torch
import torch.distributed as dist
from scenarios import batch, model, train
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)
from torch.distributed.algorithms.model_averaging import averagers
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

# One bucket of all gradients, and what is made of it.
LARGEST_OP_BYTES = dict.fromkeys(
    (
        "power_sgd",
        "power_sgd_in_fp16",
        "hook_fp16",
        "hook_wrapped_in_bf16",
        "post_local_sgd",
    ),
    1100 << 10,
)


def hooked(device, rank, state, hook, steps=3):
    module = DistributedDataParallel(model().to(device))
    module.register_comm_hook(state, hook)
    return train(module, device, rank, steps=steps)


def power_sgd_state(**options):
    return powerSGD_hook.PowerSGDState(
        None, start_powerSGD_iter=2, min_compression_rate=1, **options
    )


def power_sgd(device, rank, world):
    results = []
    for rank_of_matrix in (1, 4):
        state = power_sgd_state(matrix_approximation_rank=rank_of_matrix)
        results += hooked(device, rank, state, powerSGD_hook.powerSGD_hook, 4)
        results += [state.p_memory_dict, state.error_dict]
    return results


def power_sgd_in_fp16(device, rank, world):
    hook = default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook)
    return hooked(device, rank, power_sgd_state(), hook, 4)


def hook_fp16(device, rank, world):
    return hooked(device, rank, None, default_hooks.fp16_compress_hook)


def hook_wrapped_in_bf16(device, rank, world):
    hook = default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook)
    return hooked(device, rank, dist.group.WORLD, hook)


def post_local_sgd(device, rank, world):
    """After two steps each rank has its own gradients, and every second step
    all parameters are averaged."""
    pair = dist.new_subgroups(group_size=2)[0]
    module = DistributedDataParallel(model().to(device))
    state = post_localSGD_hook.PostLocalSGDState(None, pair, 2, False)
    module.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(
        torch.optim.AdamW(module.parameters(), lr=1e-2),
        averagers.PeriodicModelAverager(period=2, warmup_steps=2),
    )
    losses = []
    for step in range(5):
        loss = module(batch(step, rank, device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses, list(module.parameters())
