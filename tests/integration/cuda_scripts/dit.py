"""A diffusion transformer: adaptive layer norm, an average of the weights."""

import argparse
import copy
import logging
import os

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class Attention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, c // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(b, n, c))


class DiTBlock(nn.Module):
    def __init__(self, size, num_heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(size, elementwise_affine=False, eps=1e-6)
        self.attn = Attention(size, num_heads)
        self.norm2 = nn.LayerNorm(size, elementwise_affine=False, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(size, 4 * size),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * size, size),
        )
        self.adaLN_modulation = nn.Sequential(
            nn.SiLU(), nn.Linear(size, 6 * size)
        )

    def forward(self, x, c):
        parts = self.adaLN_modulation(c).chunk(6, dim=1)
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = parts
        x = x + gate_msa.unsqueeze(1) * self.attn(
            modulate(self.norm1(x), shift_msa, scale_msa)
        )
        return x + gate_mlp.unsqueeze(1) * self.mlp(
            modulate(self.norm2(x), shift_mlp, scale_mlp)
        )


class DiT(nn.Module):
    def __init__(self, size=96, depth=3, num_heads=4, channels=4, grid=4):
        super().__init__()
        self.x_embedder = nn.Conv2d(channels, size, 2, 2)
        self.t_embedder = nn.Sequential(
            nn.Linear(32, size), nn.SiLU(), nn.Linear(size, size)
        )
        self.y_embedder = nn.Embedding(11, size)
        self.pos_embed = nn.Parameter(
            torch.randn(1, grid * grid, size), requires_grad=False
        )
        self.blocks = nn.ModuleList(
            DiTBlock(size, num_heads) for _ in range(depth)
        )
        self.final = nn.Linear(size, 4 * channels)
        self.grid, self.channels = grid, channels

    def forward(self, x, t, y):
        freqs = torch.exp(-torch.arange(16, device=t.device) / 2)
        angles = t[:, None].float() * freqs[None]
        t = self.t_embedder(torch.cat([angles.cos(), angles.sin()], dim=-1))
        if self.training:
            drop = torch.rand(y.shape[0], device=y.device) < 0.1
            y = torch.where(drop, 10, y)
        c = t + self.y_embedder(y)
        x = self.x_embedder(x).flatten(2).transpose(1, 2) + self.pos_embed
        for block in self.blocks:
            x = block(x, c)
        n, g, p = x.shape[0], self.grid, 2
        x = self.final(x).reshape(n, g, g, p, p, self.channels)
        return torch.einsum("nhwpqc->nchpwq", x).reshape(n, -1, g * p, g * p)


@torch.no_grad()
def update_ema(ema_model, model, decay=0.9999):
    ema_params = dict(ema_model.named_parameters())
    for name, param in model.named_parameters():
        ema_params[name].mul_(decay).add_(param.data, alpha=1 - decay)


def main(args):
    assert torch.cuda.is_available() or args.allow_cpu
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.global_seed)
    os.makedirs(args.results_dir, exist_ok=True)
    logging.basicConfig(
        level=logging.INFO,
        handlers=[logging.FileHandler(f"{args.results_dir}/log.txt")],
    )
    model = DiT()
    ema = copy.deepcopy(model).to(device).requires_grad_(False)
    model = model.to(device)
    alphas = torch.linspace(1, 0.01, 100).to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0)
    draws = torch.Generator().manual_seed(3)
    dataset = TensorDataset(
        torch.randn(64, 4, 8, 8, generator=draws),
        torch.randint(0, 10, (64,), generator=draws),
    )
    loader = DataLoader(
        dataset, batch_size=16, num_workers=1, pin_memory=True, drop_last=True
    )
    update_ema(ema, model, decay=0)
    model.train()
    ema.eval()
    running_loss = 0
    for train_steps, (x, y) in enumerate(loader, 1):
        x, y = x.to(device), y.to(device)
        t = torch.randint(0, 100, (x.shape[0],), device=device)
        noise = torch.randn_like(x)
        alpha = alphas[t].view(-1, 1, 1, 1)
        noisy = alpha.sqrt() * x + (1 - alpha).sqrt() * noise
        loss = (model(noisy, t, y) - noise).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        update_ema(ema, model)
        running_loss += loss.item()
        if device == "cuda":
            torch.cuda.synchronize()
        average = torch.tensor(running_loss / train_steps, device=device)
        logging.info("(step=%07d) Train Loss: %r", train_steps, average.item())
        print(train_steps, loss.item(), average.item())
        if train_steps % args.ckpt_every == 0:
            checkpoint = {
                "model": model.state_dict(),
                "ema": ema.state_dict(),
                "opt": opt.state_dict(),
                "args": args,
            }
            path = f"{args.results_dir}/{train_steps:07d}.pt"
            torch.save(checkpoint, path)
    print(sum(p.cpu().double().sum().item() for p in ema.parameters()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--results-dir", default="results")
    parser.add_argument("--global-seed", type=int, default=0)
    parser.add_argument("--ckpt-every", type=int, default=2)
    parser.add_argument("--allow-cpu", action="store_true", default=True)
    main(parser.parse_args())
