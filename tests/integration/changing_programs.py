"""Trainings whose sequence of ops changes, a step at a time.

Each program is a generator: it yields a step's kind and the step, to call.
Equal kinds are equal work. Nothing is read from the device, so all of them run
on a simulated one too.
"""

import random
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

DEVICE = "chameleon"


@dataclass(frozen=True)
class Size:
    """Of a model and its batches."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    batch: int
    length: int


SMALL = Size(layers=4, width=256, heads=4, vocabulary=1024, batch=8, length=256)
MIDDLE = Size(
    layers=12, width=1024, heads=16, vocabulary=16384, batch=8, length=1024
)


class Block(nn.Module):
    """A transformer's layer; `surprise` may change its ops at each call."""

    def __init__(self, size, feed_forward=None):
        super().__init__()
        width = size.width
        self.heads = size.heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.feed_forward = feed_forward or nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x, surprise):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(surprise(self.norm1(x))).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(
            surprise(q), k, v, is_causal=True
        )
        x = x + surprise(self.out(mixed.transpose(1, 2).flatten(2)))
        return surprise(x) + surprise(self.feed_forward(self.norm2(x)))


class Experts(nn.Module):
    """A mixture of feed-forward layers; who goes where is drawn on the CPU."""

    def __init__(self, width, experts, draws, even):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, 2 * width),
                nn.GELU(),
                nn.Linear(2 * width, width),
            )
            for _ in range(experts)
        )
        self.draws, self.even = draws, even

    def forward(self, x):
        flat = x.flatten(0, 1)
        weights = self.router(flat).softmax(-1)
        count = len(self.experts)
        if self.even:
            chosen = torch.arange(len(flat), device="cpu") % count
        else:
            chosen = torch.multinomial(
                torch.rand(
                    count,
                    generator=self.draws,
                    device="cpu",
                    dtype=torch.float,
                )
                + 0.5,
                len(flat),
                replacement=True,
                generator=self.draws,
            )
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().flatten().to(x.device)
            got = expert(flat[rows]) * weights[rows, number, None]
            out = out.index_add(0, rows, got)
        return out.view_as(x)


class Model(nn.Module):
    """A transformer; `forward` returns the loss."""

    def __init__(self, size, make_block=Block):
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.width)
        self.blocks = nn.ModuleList(
            make_block(size) for _ in range(size.layers)
        )
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary)

    def forward(self, tokens, surprise=lambda x: x):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, surprise)
        logits = self.head(self.norm(x)).flatten(0, 1).float()
        return F.cross_entropy(logits, tokens.flatten())


class Training:
    """A model, its optimizer and the parts of a step."""

    def __init__(self, size, make_block=Block):
        torch.manual_seed(0)
        self.size = size
        with torch.device(DEVICE):
            self.model = Model(size, make_block)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def tokens(self, batch=None, length=None):
        size = self.size
        return torch.zeros(
            batch or size.batch,
            length or size.length,
            dtype=torch.long,
            device=DEVICE,
        )

    def backward(self, *arguments, **shape):
        self.model(self.tokens(**shape), *arguments).backward()

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self, *arguments, **shape):
        self.backward(*arguments, **shape)
        self.update()

    def evaluate(self):
        with torch.no_grad():
            self.model(self.tokens())


# ---- programs ----------------------------------------------------------------


def steady(size, steps=12):
    """Nothing changes, but for the first step: it makes the state."""
    training = Training(size)
    for _ in range(steps):
        yield "train", training.step


def train_and_eval(size, rounds=6):
    """Three steps of training and two of evaluation, in turn."""
    training = Training(size)
    for _ in range(rounds):
        for _ in range(3):
            yield "train", training.step
        for _ in range(2):
            yield "eval", training.evaluate


def accumulation(size, steps=12, every=4):
    """The optimizer comes after every fourth backward; that is a step."""
    training = Training(size)

    def step():
        for _ in range(every):
            training.backward()
        training.update()

    for _ in range(steps):
        yield "train", step


def skipped_updates(size, steps=24):
    """Now and then the optimizer is left out, as a loss scaler does."""
    training = Training(size)

    def skipping():
        training.backward()
        training.optimizer.zero_grad()

    draws = random.Random(1)
    for step in range(steps):
        skip = step > 3 and draws.random() < 0.25
        yield ("skipped", skipping) if skip else ("train", training.step)


def lengths(size, steps=36):
    """Three lengths of the batch, at random."""
    training = Training(size)
    draws = random.Random(0)
    for _ in range(steps):
        length = size.length * draws.choice((2, 3, 4)) // 4
        yield f"length {length}", lambda: training.step(length=length)  # noqa: B023


def batch_sizes(size, steps=8):
    """The batch gets smaller for a while, then is as before."""
    training = Training(size)
    smaller = size.batch * 3 // 4
    for batch in (size.batch, smaller, size.batch):
        for _ in range(steps):
            yield f"batch {batch}", lambda: training.step(batch=batch)  # noqa: B023


def phases(size, steps=8):
    """The lower half is frozen; later another loss, then all as before."""
    training = Training(size)
    half = training.model.blocks[: size.layers // 2]

    def other_loss():
        x = training.model.embedding(training.tokens())
        for block in training.model.blocks:
            x = block(x, lambda x: x)
        training.model.norm(x).float().square().mean().backward()
        training.update()

    for _ in range(steps):
        yield "all", training.step
    half.requires_grad_(False)
    for _ in range(steps):
        yield "half", training.step
    for _ in range(steps):
        yield "other loss", other_loss
    half.requires_grad_(True)
    for _ in range(steps):
        yield "all", training.step


def experts(size, steps=16, even=False, count=8):
    """Routing that is another one every step; `even`: always the same."""
    draws = torch.Generator("cpu").manual_seed(0)

    def make_block(size):
        return Block(size, Experts(size.width, count, draws, even))

    training = Training(size, make_block)
    for _ in range(steps):
        yield "train", training.step


class Surprises:
    """Changes ops at random: one more, one less, or in two parts."""

    def __init__(self, share, seed=0):
        self.share = share
        self.draws = random.Random(seed)

    def __call__(self, x):
        kind = self.draws.random() / self.share if self.share else 1
        if kind < 1 / 3:  # one op less than usual
            return x
        if kind < 2 / 3:  # one more
            return (x * 1.5) * 1.5
        if kind < 1:  # other shapes
            return torch.cat([part * 1.5 for part in x.chunk(2)])
        return x * 1.5


def surprises(size, steps=24, share=0.0):
    """`share` of the places where an op may differ do, at random."""
    training = Training(size)
    surprise = Surprises(share)
    for _ in range(steps):
        yield "train", lambda: training.step(surprise)
