"""As an allocator alone: nothing has to swap, and little memory is lost.

Every batch has another length, so tensors of many sizes come and go. PyTorch's
own allocator cannot train this on a card that is 5 % larger than what is live:
between what it holds, free memory is in pieces that fit nothing.
"""

import random

import torch
import torch_chameleon
from torch import nn
from torch.nn import functional as F  # noqa: N812

WORDS, WIDTH = 8192, 128


class Model(nn.Module):
    """A small language model."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(
                    WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True
                )
                for _ in range(2)
            )
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        """Returns a score for each word at each place."""
        return self.head(self.layers(self.embed(tokens)))


def training():
    """Returns what trains a new model by a batch of a length."""
    model = Model().to("chameleon")
    optimizer = torch.optim.AdamW(model.parameters())

    def step(length):
        tokens = torch.randint(WORDS, (4, length)).to("chameleon")
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def lengths(count):
    """Returns lengths of batches, drawn at random."""
    draw = random.Random(0)
    return [draw.randrange(32, 256) for _ in range(count)]


if __name__ == "__main__":
    torch_chameleon.config.hbm_budget = "136MiB"  # 134 MiB are live
    torch_chameleon.config.oversubscription = 1.0  # no more than HBM holds
    step = training()
    for epoch in range(5):
        torch_chameleon.reset_swap_stats()
        for length in lengths(8):
            loss = step(length)
        stats = torch_chameleon.swap_stats()
        moved = stats["bytes_in"] + stats["bytes_out"]
        print(f"epoch {epoch}: loss {loss.item():.2f}, {moved} bytes moved")
