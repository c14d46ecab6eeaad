"""Small models, optimizers, and ways to take a training step."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint

from random_programs.autograd_tools import in_thread

MODELS = (
    *("gpt", "gpt checkpointed", "gpt reentrant"),
    *("conv", "conv channels_last", "lstm", "gru", "mlp", "tied"),
)
OPTIMIZERS = (
    *("SGD", "Adam", "AdamW", "AdamW", "RMSprop", "Adagrad", "NAdam"),
    *("RAdam", "Adadelta", "Adamax", "ASGD", "Rprop"),
)
FUSED = ("SGD", "Adam", "AdamW", "Adagrad")


class Block(nn.Module):
    def __init__(self, width, heads=2, dropout=0.1):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.first(x)).chunk(3, -1)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=dropout
        )
        mixed = mixed.transpose(1, 2).reshape(batch, length, width)
        x = x + F.dropout(self.out(mixed), self.dropout, self.training)
        return x + self.down(F.gelu(self.up(self.second(x))))


class Gpt(nn.Module):
    def __init__(self, kind, width=32, depth=2):
        super().__init__()
        self.kind = kind
        self.embed = nn.Embedding(17, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            if self.kind == "gpt":
                x = block(x)
            else:
                reentrant = self.kind == "gpt reentrant"
                x = checkpoint(block, x, use_reentrant=reentrant)
        return F.linear(x, self.embed.weight).flatten(0, 1)


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.conv = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.first, self.second = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = F.relu(self.first(self.stem(x)), inplace=True)
        y = self.second(self.conv(x))
        y += x
        x = F.max_pool2d(F.relu(y, inplace=True), 2)
        return self.head(x.mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        layer = nn.GRU if kind == "gru" else nn.LSTM
        twice = kind == "gru"
        self.layers = layer(
            *(6, 10, 2), dropout=0.2, batch_first=True, bidirectional=twice
        )
        self.head = nn.LazyLinear(4)

    def forward(self, x):
        return self.head(self.layers(x)[0][:, -1])


class Task:
    """A model with a batch and a loss."""

    def __init__(self, kind, seed, device):
        torch.manual_seed(seed)
        draws = torch.Generator().manual_seed(seed)
        if kind.startswith("gpt"):
            model = Gpt(kind)
            x = torch.randint(0, 17, (3, 12), generator=draws)
            y = torch.randint(0, 17, (3 * 12,), generator=draws)
        elif kind.startswith("conv"):
            model = Conv()
            x = torch.randn(4, 3, 8, 8, generator=draws)
            y = torch.randint(0, 5, (4,), generator=draws)
        elif kind in ("lstm", "gru"):
            model = Recurrent(kind)
            x = torch.randn(3, 5, 6, generator=draws)
            y = torch.randn(3, 4, generator=draws)
            model(x)  # gives the lazy layer its size
        else:
            model = nn.Sequential(
                *(nn.Linear(64, 96), nn.GELU(), nn.Dropout(0.1)),
                *(nn.Linear(96, 96), nn.Tanh(), nn.LayerNorm(96)),
                nn.Linear(96, 96 if kind == "tied" else 8),
            )
            if kind == "tied":
                model[6].weight = model[3].weight
            x = torch.randn(16, 64, generator=draws)
            y = torch.randn(16, 96 if kind == "tied" else 8, generator=draws)
        if kind == "conv channels_last":
            model = model.to(memory_format=torch.channels_last)
            x = x.contiguous(memory_format=torch.channels_last)
        self.model, self.x, self.y = model, x, y
        self.to(device)

    def to(self, device):
        self.model.to(device)
        self.x, self.y = self.x.to(device), self.y.to(device)

    def loss(self, model=None):
        output = (model or self.model)(self.x)
        if self.y.is_floating_point():
            return F.mse_loss(output, self.y)
        return F.cross_entropy(output, self.y)


def optimizer(task, name, how):
    """`how`: foreach, fused, or a loop."""
    choice = (
        {"fused": True} if how == "fused" else {"foreach": how == "foreach"}
    )
    if name == "SGD":
        choice |= {"momentum": 0.9, "nesterov": True}
    return getattr(torch.optim, name)(
        task.model.parameters(), lr=1e-3, **choice
    )


def _plain(task, device):
    loss = task.loss()
    loss.backward()
    return loss


def _autocast(task, device):
    with torch.autocast(device, torch.bfloat16):
        loss = task.loss()
    loss.backward()
    return loss


def _accumulated(task, device):
    for _ in range(2):
        (task.loss() / 2).backward()
    return task.loss()


def _clipped(task, device):
    loss = _plain(task, device)
    nn.utils.clip_grad_norm_(task.model.parameters(), 0.5)
    return loss


def _twice(task, device):
    loss = task.loss()
    loss.backward(retain_graph=True)
    loss.backward()
    return loss


def _penalized(task, device):
    loss = task.loss()
    found = torch.autograd.grad(
        loss,
        list(task.model.parameters()),
        create_graph=True,
        allow_unused=True,
    )
    loss = loss + 0.1 * sum(g.square().sum() for g in found if g is not None)
    loss.backward()
    return loss


def _saved_on_cpu(task, device):
    with torch.autograd.graph.save_on_cpu():
        loss = task.loss()
    loss.backward()
    return loss


def _failing(task, device):
    def fail(grad):
        raise ValueError("planned failure in a hook")

    hook = next(task.model.parameters()).register_hook(fail)
    loss = task.loss()
    try:
        loss.backward()
    except ValueError:
        pass  # some gradients are there, others are not
    finally:
        hook.remove()
    task.model.zero_grad()
    return loss


def _threaded(task, device):
    return in_thread(lambda: _plain(task, device))


STEPS = {
    "plain": _plain,
    "autocast": _autocast,
    "accumulated": _accumulated,
    "clipped": _clipped,
    "twice": _twice,
    "penalized": _penalized,
    "saved on cpu": _saved_on_cpu,
    "failing": _failing,
    "threaded": _threaded,
}


def train(task, optimizer, device, how):
    """One step; its loss."""
    loss = STEPS[how](task, device)
    optimizer.step()
    optimizer.zero_grad(set_to_none=how != "accumulated")
    return loss.detach()


def evaluate(task, how):
    """The loss without gradients: no_grad, inference, or by torch.func."""
    task.model.eval()
    try:
        if how == "func":
            weights = {k: v.detach() for k, v in task.model.named_parameters()}
            buffers = {
                k: v.detach().clone() for k, v in task.model.named_buffers()
            }

            def call(weights):
                return task.loss(
                    lambda x: torch.func.functional_call(
                        task.model, (weights, buffers), (x,)
                    )
                )

            found = torch.func.grad(call)(weights)
            return sum(g.sum() for g in found.values())
        mode = torch.no_grad if how == "no_grad" else torch.inference_mode
        with mode():
            loss = task.loss()
        return loss.clone()
    finally:
        task.model.train()
