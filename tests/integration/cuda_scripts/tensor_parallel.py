"""Tensor and sequence parallelism over a mesh, under torchrun."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

VOCABULARY, TOKENS, WIDTH, HEADS, LAYERS = 128, 32, 64, 4, 3


class Attention(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv, self.wo = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )

    def forward(self, x):
        q, k, v = (
            w(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for w in (self.wq, self.wk, self.wv)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.w2 = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.w2(nn.functional.silu(self.w1(x)))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.feed_forward = Attention(HEADS), FeedForward()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.ffn_norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x):
        x = self.tokens(x)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def parallelized(model, mesh):
    parallelize_module(
        model,
        mesh,
        {
            "tokens": RowwiseParallel(
                input_layouts=Replicate(), output_layouts=Shard(1)
            ),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(
                input_layouts=Shard(1), output_layouts=Replicate()
            ),
        },
    )
    whole = PrepareModuleInput(
        input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
    )
    for layer in model.layers:
        layer.attention.heads //= mesh.size()
        parallelize_module(
            layer,
            mesh,
            {
                "attention_norm": SequenceParallel(),
                "attention": whole,
                "attention.wq": ColwiseParallel(),
                "attention.wk": ColwiseParallel(),
                "attention.wv": ColwiseParallel(),
                "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
                "ffn_norm": SequenceParallel(),
                "feed_forward": whole,
                "feed_forward.w1": ColwiseParallel(),
                "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
            },
        )
    return model


def main():
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = init_device_mesh(kind, (int(os.environ["WORLD_SIZE"]),))
    rank = mesh.get_rank()
    torch.manual_seed(0)
    model = parallelized(Model().to(kind), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=True)
    for step in range(4):
        # Ranks of one mesh see the same batch.
        draws = torch.Generator().manual_seed(step)
        x = torch.randint(0, VOCABULARY, (8, TOKENS), generator=draws).to(kind)
        logits = model(x).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, x.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"[{rank}] iter {step} loss {loss.item()!r}")
    total = sum(
        parameter.full_tensor().double().sum()
        if hasattr(parameter, "full_tensor")
        else parameter.double().sum()
        for parameter in model.parameters()
    )
    print(f"[{rank}] parameters {total.item()!r}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
