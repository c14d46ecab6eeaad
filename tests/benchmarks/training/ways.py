"""Ways to train within less memory: ours, and what users do today.

A way turns a training into a function that makes one step. All compute the
same, but that batch norm sees parts of a batch under `micro_batch`. Those that
cannot run here raise `UnavailableError` with the reason.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import tempfile
from collections.abc import Callable

import torch
from benchmark_trainings import Training
from torch.utils.checkpoint import checkpoint

Step = Callable[[], torch.Tensor]  # returns the loss, or of parts the last one


class UnavailableError(Exception):
    """This way cannot run here; says why."""


def _step(
    training: Training,
    parts: int = 1,
    around: Callable[[], contextlib.AbstractContextManager] = (
        contextlib.nullcontext
    ),
) -> Step:
    def step() -> torch.Tensor:
        for part in range(parts):
            with around():
                loss = training.loss(part, parts) / parts
            loss.backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        return loss.detach()

    return step


def in_memory(training: Training) -> Step:
    """As it is."""
    return _step(training)


def expandable_segments(training: Training) -> Step:
    """As it is; PyTorch's allocator is told so before the process begins."""
    if not torch.cuda.is_available():
        raise UnavailableError("PyTorch's own allocator needs a CUDA device")
    return _step(training)


def checkpointed(training: Training) -> Step:
    """Every block's forward is run again in backward."""
    for block in training.blocks:
        block.forward = functools.partial(
            checkpoint, block.forward, use_reentrant=False
        )
    return _step(training)


def save_on_cpu(training: Training) -> Step:
    """Everything that autograd saves waits in pinned host memory."""
    pinned = torch.cuda.is_available()
    return _step(
        training,
        around=lambda: torch.autograd.graph.save_on_cpu(pin_memory=pinned),
    )


def micro_batch(training: Training, parts: int) -> Step:
    """The batch in parts, whose gradients are added."""
    return _step(training, parts)


def _join_group_of_one(backend: str) -> None:
    # A group of one needs no network, and there may be none.
    for library in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")
    with tempfile.NamedTemporaryFile(delete=False) as file:
        pass
    os.unlink(file.name)
    torch.distributed.init_process_group(
        backend, init_method=f"file://{file.name}", rank=0, world_size=1
    )


def fsdp2_offload(training: Training, is_checkpointed: bool = False) -> Step:
    """FSDP2 on one rank: parameters, gradients and optimizer on the host."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    if not all(p.is_contiguous() for p in training.model.parameters()):
        raise UnavailableError("FSDP2 shards contiguous parameters only")
    is_cuda = torch.cuda.is_available()
    _join_group_of_one("cuda:nccl,cpu:gloo" if is_cuda else "cpu:gloo")
    mesh = init_device_mesh("cuda" if is_cuda else "cpu", (1,))
    policy = CPUOffloadPolicy(pin_memory=is_cuda)
    if is_checkpointed:
        checkpointed(training)
    for block in training.blocks:
        fully_shard(block, mesh=mesh, offload_policy=policy)
    fully_shard(training.model, mesh=mesh, offload_policy=policy)
    training.remake_optimizer()
    return _step(training)


def trl_offload(training: Training) -> Step:
    """TRL's offload of activations, on streams of their own."""
    if not torch.cuda.is_available():
        raise UnavailableError("TRL's activation offload needs a CUDA device")
    if importlib.util.find_spec("trl") is None:
        raise UnavailableError("TRL is not installed")
    from trl.models.activation_offloading import OffloadActivations

    offload = OffloadActivations()
    return _step(training, around=lambda: offload)


def torchao_offload(training: Training, is_checkpointed: bool = False) -> Step:
    """torchao's optimizer with its state on the host."""
    if importlib.util.find_spec("torchao") is None:
        raise UnavailableError("torchao is not installed")
    if not torch.cuda.is_available():
        raise UnavailableError("torchao's optimizer needs a CUDA device")
    if not isinstance(training.optimizer, torch.optim.AdamW):
        raise UnavailableError("its optimizer here is AdamW's")
    from torchao.optim import CPUOffloadOptimizer

    if is_checkpointed:
        checkpointed(training)
    training.optimizer = CPUOffloadOptimizer(
        [p for p in training.model.parameters() if p.requires_grad],
        torch.optim.AdamW,
        offload_gradients=True,
        fused=True,
        lr=1e-4,
    )
    return _step(training)


def deepspeed_offload(training: Training, stage: int) -> Step:
    """DeepSpeed's ZeRO on one rank: optimizer on the host, at 3 weights too."""
    if importlib.util.find_spec("deepspeed") is None:
        raise UnavailableError("DeepSpeed is not installed")
    import deepspeed

    is_cuda = torch.cuda.is_available()
    _join_group_of_one("nccl" if is_cuda else "gloo")
    os.environ.setdefault("LOCAL_RANK", "0")
    on_host = {"device": "cpu", "pin_memory": is_cuda}
    zero = {"stage": stage, "offload_optimizer": on_host}
    if stage == 3:
        zero["offload_param"] = on_host
    engine, *_ = deepspeed.initialize(
        model=training.model,
        # PyTorch's own, which is fused on the host too: the same math.
        optimizer=training.optimizer,
        config={
            "train_micro_batch_size_per_gpu": training.batch,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": zero,
        },
        dist_init_required=False,
    )

    def step() -> torch.Tensor:
        loss = training.loss(0, 1)
        engine.backward(loss)
        engine.step()
        return loss.detach()

    return step


# The way's name: what it makes of a training. `micro_batch` tries its parts in
# turn until one fits.
WAYS: dict[str, Callable[[Training], Step]] = {
    "in_memory": in_memory,
    "chameleon": in_memory,  # the same code, on another device
    "expandable_segments": expandable_segments,
    "checkpoint": checkpointed,
    "save_on_cpu": save_on_cpu,
    **{
        f"micro_batch_{parts}": functools.partial(micro_batch, parts=parts)
        for parts in (2, 4, 8, 16)
    },
    "fsdp2_offload": fsdp2_offload,
    "fsdp2_offload_checkpoint": functools.partial(
        fsdp2_offload, is_checkpointed=True
    ),
    "trl_offload": trl_offload,
    "torchao_offload": torchao_offload,
    "torchao_offload_checkpoint": functools.partial(
        torchao_offload, is_checkpointed=True
    ),
    "deepspeed_zero2": functools.partial(deepspeed_offload, stage=2),
    "deepspeed_zero3": functools.partial(deepspeed_offload, stage=3),
}
