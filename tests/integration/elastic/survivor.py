"""A training with a state, in one of several processes: started by an agent.

Usage: survivor.py MODEL WAY OUT [STEPS [MICRO_BATCHES [WIDTH]]], with MODEL
gpt, gpt_without_dropout or resnet, and WAY ddp or fsdp2. A step takes as many
micro-batches, however many ranks there are. Each life of a rank adds a line to
OUT/lives.RANK, and the last one leaves OUT/RANK.json.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch_chameleon
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel

STEPS, MICRO_BATCHES, WIDTHS = 6, 2, {"gpt": 24, "resnet": 8}
CLASSES, TOKENS = 32, 16


class Attention(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.dropout = dropout
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (2, -1)).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed = self.out(mixed.transpose(1, 2).flatten(2))
        return x + F.dropout(mixed, self.dropout)


class FeedForward(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


def gpt(width, dropout=0.1):
    def block():
        yield Attention(width, dropout)
        yield FeedForward(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    blocks = [part for _ in range(2) for part in block()]
    return nn.Sequential(
        nn.Embedding(CLASSES, width), *blocks, nn.Linear(width, CLASSES)
    )


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x):
        return F.relu(x + self.body(x), inplace=True)


def resnet(width):
    return nn.Sequential(
        nn.Conv2d(3, width, 3),
        *(Residual(width) for _ in range(3)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, CLASSES),
    )


MODELS = {
    "gpt": gpt,
    "gpt_without_dropout": lambda width: gpt(width, dropout=0.0),
    "resnet": resnet,
}


def batch(kind, number):
    """The same for whichever rank takes it."""
    draws = torch.Generator().manual_seed(number)
    is_image = kind == "resnet"
    shape = (4,) if is_image else (4, TOKENS)
    targets = torch.randint(CLASSES, shape, generator=draws)
    if not is_image:
        return targets.roll(1, -1).to("chameleon"), targets.to("chameleon")
    images = torch.randn(4, 3, 10, 10, generator=draws)
    return images.to("chameleon"), targets.to("chameleon")


def spread(model, way, world):
    if way == "ddp":
        # More than two numbers are added in an order that depends on where
        # they are in a bucket; and buckets are not made anew after a step
        # where parameters may be unused.
        return DistributedDataParallel(model, find_unused_parameters=world > 2)
    mesh = init_device_mesh("chameleon", (world,))
    for part in model:
        if any(True for _ in part.parameters()):
            fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(state, kind, micro_batches, rank):
    """A step; ranks that are left do the work of all, or their own."""
    mine = range(rank, micro_batches, torch_chameleon.elastic.shares())
    for each in mine:
        if hasattr(state.model, "set_requires_gradient_sync"):
            state.model.set_requires_gradient_sync(each == mine[-1])
        x, y = batch(kind, micro_batches * state.step + each)
        loss = F.cross_entropy(state.model(x).flatten(0, -2), y.flatten())
        (loss / len(mine)).backward()  # ranks have equally many
    state.optimizer.step()
    state.optimizer.zero_grad()
    state.scheduler.step()
    state.step += 1


def digest(tensors, optimizer):
    """Of a model's tensors and all that the optimizer has, to the bit."""
    hasher = hashlib.sha256()
    for value in [
        *tensors,
        *(
            value
            for each in optimizer.state_dict()["state"].values()
            for value in each.values()
        ),
    ]:
        if hasattr(value, "full_tensor"):
            value = value.full_tensor()
        value = value.detach().cpu().contiguous().reshape(-1)
        hasher.update(value.view(torch.uint8).numpy().tobytes())
    return hasher.hexdigest()[:16]


def memory():
    """What the device used, within its budgets; files that the launcher has."""
    stats = torch_chameleon.swap_stats()
    assert stats["peak_host_bytes"] <= stats["host_budget"]
    assert stats["peak_resident_bytes"] <= stats["hbm_budget"]
    launcher, _, files = os.environ.get("CHAMELEON_KEEPER", "").partition(":")
    held = files.replace(";", ",").count(",") + 1 if files else 0
    kept = 0
    for each in pathlib.Path(f"/proc/{launcher}/fd").glob("*") if files else []:
        with contextlib.suppress(FileNotFoundError):  # another one, closed now
            kept += "chameleon elastic" in os.readlink(each)
    return {"evictions": stats["evictions"], "held": held, "kept": kept}


def parameters(state):
    """All of the model's, whole."""
    return [
        (each.full_tensor() if hasattr(each, "full_tensor") else each).cpu()
        for each in state.model.parameters()
    ]


def main(kind, way, out, steps=STEPS, micro_batches=MICRO_BATCHES, width=None):
    torch.set_num_threads(1)
    torch_chameleon.config.physical_device = "cpu"
    torch.chameleon.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(timeout=timedelta(seconds=15))
    rank, world = dist.get_rank(), dist.get_world_size()
    steps, micro_batches = int(steps), int(micro_batches)
    torch.manual_seed(0)
    model = MODELS[kind](int(width or WIDTHS[kind.partition("_")[0]]))
    model = spread(model.to("chameleon"), way, world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    torch.manual_seed(rank)
    state = torch_chameleon.elastic.State(
        model=model, optimizer=optimizer, scheduler=scheduler, step=0
    )
    out = pathlib.Path(out)
    with open(out / f"lives.{rank}", "a") as file:
        file.write(f"{state.step} {world}\n")
    used = memory()  # the last step may be done
    while state.step < steps:
        train(state, kind, micro_batches, rank)
        state.commit()
        used = memory()
    shares = torch_chameleon.elastic.shares()
    (out / f"shares.{rank}").write_text(str(shares))
    bits = digest(model.state_dict().values(), optimizer)
    found = {"digest": bits, "rates": scheduler.get_last_lr()}
    torch.save([parameters(state), used], out / f"{rank}.pt")
    (out / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
