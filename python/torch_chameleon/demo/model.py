"""A GPT over bytes: as plain as such a model can be."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (its usual name)

VOCABULARY = 256  # bytes


@dataclass(frozen=True)
class Shape:
    """The sizes of a model and of its batches."""

    layers: int
    width: int
    heads: int
    context: int  # tokens of one sequence
    batch: int  # sequences of one step


class Block(nn.Module):
    """Attention and a two-layer perceptron, each beside a residual path."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.residual_std = 0.02 / math.sqrt(2 * shape.layers)
        self.attention_norm = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, tokens, width) to the same shape."""
        x = x + self._attend(self.attention_norm(x))
        hidden = F.gelu(self.mlp_in(self.mlp_norm(x)))
        out: Tensor = x + self.mlp_out(hidden)
        return out

    def _attend(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.attention_in(x).view(batch, tokens, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True
        )
        out: Tensor = self.attention_out(
            mixed.transpose(1, 2).reshape(batch, tokens, width)
        )
        return out


class GPT(nn.Module):
    """A decoder whose output layer is tied to its token embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token = nn.Embedding(VOCABULARY, shape.width)
        self.position = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, VOCABULARY, bias=False)
        self.head.weight = self.token.weight
        self.apply(_initialize)

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps tokens (batch, n) to logits (batch, n, VOCABULARY)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(positions)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, Block):  # after its layers: less is added up
        for layer in (module.attention_out, module.mlp_out):
            nn.init.normal_(layer.weight, std=module.residual_std)


@torch.no_grad()
def generate(model: GPT, prompt: bytes, count: int, seed: int) -> bytes:
    """Continues a prompt; the draws are made on the CPU.

    Args:
        model: The model, on any device.
        prompt: What to continue.
        count: How many bytes to add.
        seed: Of the draws.
    """
    draws = torch.Generator().manual_seed(seed)
    device = model.token.weight.device
    text = list(prompt)
    for _ in range(count):
        window = torch.tensor([text[-model.shape.context :]], device=device)
        logits = model(window)[0, -1].cpu()
        weights = torch.softmax(logits / 0.8, dim=0)
        text.append(int(torch.multinomial(weights, 1, generator=draws)))
    return bytes(text)
