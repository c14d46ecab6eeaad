"""Attention whose heads lie on several ranks."""

import torch
from scenarios import WIDTH, train, values
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import scaled_dot_product_attention

HEADS = 4
LARGEST_OP_BYTES = {}


def attend(query, key, value, **options):
    """Torch knows no shards of attention on the CPU: each rank has its own."""
    if query.device.type != "cpu":
        return scaled_dot_product_attention(query, key, value, **options)
    parts = [each.to_local() for each in (query, key, value)]
    if "attn_mask" in options:
        options["attn_mask"] = options["attn_mask"].to_local()
    return DTensor.from_local(
        scaled_dot_product_attention(*parts, **options),
        query.device_mesh,
        query.placements,
    )


class Attention(nn.Module):
    def __init__(self, key_heads, **options):
        super().__init__()
        size = WIDTH // HEADS
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, size * key_heads)
        self.value = nn.Linear(WIDTH, size * key_heads)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.options = options

    def forward(self, x):
        x = x.view(2, -1, WIDTH)
        heads = [
            projected(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for projected in (self.query, self.key, self.value)
        ]
        mixed = attend(*heads, **self.options)
        return self.out(mixed.transpose(1, 2).flatten(-2))


def attention(device, world, key_heads=HEADS, **options):
    torch.manual_seed(0)
    module = nn.Sequential(
        *[Attention(key_heads, **options) for _ in range(2)]
    ).to(device)
    mesh = init_device_mesh(device, (world,))
    column = ColwiseParallel(use_local_output=False)
    for block in module:
        parallelize_module(
            block,
            mesh,
            {
                **dict.fromkeys(("query", "key", "value"), column),
                "out": RowwiseParallel(input_layouts=Shard(-1)),
            },
        )
    return train(module, device, 0, foreach=False)


def attention_of_shards(device, rank, world):
    return attention(device, world)


def causal_attention_of_shards(device, rank, world):
    return attention(device, world, is_causal=True)


def grouped_attention_of_shards(device, rank, world):
    """Heads that share their keys; of two ranks each has its keys' heads."""
    if world > 2:
        return None
    return attention(device, world, key_heads=2, enable_gqa=True)


def masked_attention_of_shards(device, rank, world):
    mask = values(device, 0, 1, HEADS, 4, 4)
    mesh = init_device_mesh(device, (world,))
    mask = distribute_tensor(mask, mesh, [Shard(1)])
    return attention(device, world, attn_mask=mask)
