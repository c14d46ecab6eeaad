"""Trainings under plans that drop and re-run, as a program.

    python recomputing.py MODEL K [POLICY] [HOST_BUDGET]

The device is the cpu with the clock of a simulated GPU whose link is slow:
bytes are here, and plans are those that would be made there. Trains on it
within the K-th part of the peak and on the cpu; prints what was re-run, and
which tensors differ. CHAMELEON_RECOMPUTE says whether ops may run again.
"""

import gc
import json
import sys

import torch
import torch_chameleon
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch_chameleon import _C, _testing, config

CLOCK = "base=rtx3090, link_in=4GB/s, link_out=4GB/s, link_both=6GB/s"
STEPS = 12
WIDTH = 128


class Block(nn.Module):
    """Attention and a feed-forward layer, with dropout."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = (
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )
        self.up, self.down = nn.Linear(WIDTH, 512), nn.Linear(512, WIDTH)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (4, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed = self.out(mixed.transpose(1, 2).flatten(2))
        x = x + F.dropout(mixed, 0.1)
        inner = F.gelu(self.up(self.norm2(x)))
        return x + F.dropout(self.down(inner), 0.1)


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(256, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens):
        x = self.token(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x).flatten(0, 1)


def resnet():
    import torchvision

    return torchvision.models.resnet18(num_classes=10)


MODELS = {"gpt": Gpt, "resnet": resnet}


def batch(name, step):
    draws = torch.Generator().manual_seed(step)
    if name == "resnet":
        images = torch.rand(16, 3, 64, 64, generator=draws)
        return images, torch.randint(10, (16,), generator=draws)
    tokens = torch.randint(256, (16, 128), generator=draws)
    return tokens, tokens.flatten()


def train(name, device, before_step=lambda step: None):
    """Everything that a training leaves, by name, and every loss."""
    torch.manual_seed(0)
    model = MODELS[name]().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    left = {}
    for step in range(STEPS):
        before_step(step)
        x, y = batch(name, step)
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if device == "chameleon":
            torch_chameleon.step()
        left[f"loss {step}"] = loss.detach().cpu()
    left["generator"] = torch.get_rng_state()
    for key, value in model.state_dict().items():
        left[key] = value.cpu()
    return left


def main(name, k, policy="forecast", host_budget=None):
    torch.set_num_threads(1)
    _testing.set_cpu_clock(CLOCK)
    config.policy = policy
    config.hbm_budget = "1GiB"

    def before_step(step):
        if step == 2:
            peak = torch_chameleon.swap_stats()["peak_logical_bytes"]
            config.hbm_budget = int(peak / float(k)) // 512 * 512
            if host_budget is not None:
                config.host_budget = int(host_budget)

    ours = train(name, "chameleon", before_step)
    stats = torch_chameleon.swap_stats()
    gc.collect()
    _C.check_invariants(0, 3)
    native = train(name, "cpu")
    differ = [
        key
        for key, value in native.items()
        if not torch.equal(value, ours[key])
    ]
    print(json.dumps({"stats": stats, "differ": differ}))


if __name__ == "__main__":
    main(*sys.argv[1:])
