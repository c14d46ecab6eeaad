"""Trainings that run natively and on chameleon, and everything they leave.

A training is a function of a device. It returns losses, final parameters,
buffers, gradients and optimizer state, by name, on the CPU. Native references
name the same implementations as chameleon takes by default (foreach).
"""

import functools
import gc
import math
from contextlib import contextmanager

import torch
import torch_chameleon
from support import same_bits
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint
from torch_chameleon.demo.model import GPT, Shape

TRAININGS = {}

# Of torch.optim, with options that make them keep all they can keep.
OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, {"weight_decay": 0.1}),
    "adam_amsgrad": (torch.optim.Adam, {"amsgrad": True}),
    "adamw": (torch.optim.AdamW, {}),
    "adamw_maximize": (torch.optim.AdamW, {"maximize": True}),
    "adamax": (torch.optim.Adamax, {}),
    "nadam": (torch.optim.NAdam, {}),
    "radam": (torch.optim.RAdam, {}),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.5, "centered": True}),
    "adagrad": (torch.optim.Adagrad, {}),
    "adadelta": (torch.optim.Adadelta, {}),
    "asgd": (torch.optim.ASGD, {}),
    "rprop": (torch.optim.Rprop, {}),
}


def training(function):
    TRAININGS[function.__name__] = function
    return function


class Record:
    """Collects what a training leaves."""

    def __init__(self):
        self.tensors = {}

    def loss(self, value):
        self.tensors[f"loss{len(self.tensors)}"] = value.detach().cpu()

    def state(self, model, optimizer):
        for name, buffer in model.named_buffers():
            self.tensors[name] = buffer.detach().cpu()
        for name, parameter in model.named_parameters():
            self.tensors[name] = parameter.detach().cpu()
            if parameter.grad is not None:
                self.tensors[f"{name}.grad"] = parameter.grad.cpu()
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    self.tensors[f"{name}.{key}"] = value.cpu()
        return self.tensors


def fit(model, optimizer, batches, device, criterion=F.cross_entropy, each=1):
    """Steps over batches; `each` batches are accumulated for one step."""
    record = Record()
    for index, (x, y) in enumerate(batches):
        loss = criterion(model(x.to(device)), y.to(device))
        record.loss(loss)
        (loss / each).backward()
        if (index + 1) % each == 0:
            optimizer.step()
            if index + 1 < len(batches):
                optimizer.zero_grad()
    return record.state(model, optimizer)


def adamw(model):
    parameters = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(parameters, foreach=True)


# ---- language models

GPT_SHAPE = Shape(layers=3, width=128, heads=4, context=64, batch=8)


def text(steps, batch=8, tokens=64):
    draws = torch.Generator().manual_seed(1)
    rows = [
        torch.randint(256, (batch, tokens + 1), generator=draws)
        for _ in range(steps)
    ]
    return [(row[:, :-1], row[:, 1:]) for row in rows]


def token_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def gpt(device):
    torch.manual_seed(0)
    return GPT(GPT_SHAPE).to(device)


@training
def gpt_adamw(device):
    """Cosine schedule and clipping; embeddings are tied."""
    model = gpt(device)
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    record = Record()
    for x, y in text(3):
        optimizer.zero_grad()
        loss = token_loss(model(x.to(device)), y.to(device))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        record.loss(norm)
        optimizer.step()
        schedule.step()
        record.loss(loss)
    assert model.head.weight is model.token.weight
    return record.state(model, optimizer)


@training
def accumulation(device):
    model = gpt(device)
    return fit(model, adamw(model), text(4), device, token_loss, each=2)


@training
def checkpointing(device):
    class Checkpointed(nn.Module):
        def __init__(self, block):
            super().__init__()
            self.block = block
            self.drop = nn.Dropout(0.1)

        def forward(self, x):
            return self.drop(checkpoint(self.block, x, use_reentrant=False))

    model = gpt(device)
    model.blocks = nn.ModuleList(Checkpointed(b) for b in model.blocks)
    return fit(model, adamw(model), text(3), device, token_loss)


@training
def frozen_layers(device):
    model = gpt(device)
    model.blocks[:2].requires_grad_(False)
    return fit(model, adamw(model), text(3), device, token_loss)


@training
def eval_between(device):
    model = gpt(device)
    optimizer = adamw(model)
    record = Record()
    for x, y in text(3):
        optimizer.zero_grad()
        loss = token_loss(model.train()(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        record.loss(loss)
        with torch.inference_mode():
            record.loss(token_loss(model.eval()(x.to(device)), y.to(device)))
    return record.state(model, optimizer)


@training
def lstm(device):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(256, 192)
            self.lstm = nn.LSTM(192, 192, 4, batch_first=True, dropout=0.1)
            self.head = nn.Linear(192, 256)

        def forward(self, tokens):
            return self.head(self.lstm(self.embed(tokens))[0])

    torch.manual_seed(0)
    model = Model().to(device)
    batches = text(3, batch=4, tokens=16)
    return fit(model, adamw(model), batches, device, token_loss)


# ---- vision


def digits(steps, batch, size, channels=3):
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.tensor(data.images[: steps * batch], dtype=torch.float32)
    images = F.interpolate(images[:, None] / 16, size=(size, size))
    images = images.expand(-1, channels, -1, -1).contiguous()
    labels = torch.tensor(data.target[: steps * batch])
    return list(zip(images.split(batch), labels.split(batch), strict=True))


@training
def resnet18(device):
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=10).to(device)
    optimizer = torch.optim.SGD(
        model.parameters(), 0.01, momentum=0.9, foreach=True
    )
    return fit(model, optimizer, digits(2, 8, 32), device)


@training
def vit(device):
    import timm

    torch.manual_seed(0)
    model = timm.models.VisionTransformer(
        img_size=32,
        patch_size=8,
        embed_dim=128,
        depth=4,
        num_heads=4,
        num_classes=10,
    ).to(device)
    return fit(model, adamw(model), digits(2, 16, 32), device)


# ---- how they are run


@functools.cache
def native(name):
    return TRAININGS[name]("cpu")


@functools.cache
def peak_bytes(name):
    """Peak of live bytes of a training without a limit, which has the bits."""
    with budget(1 << 30):
        results = TRAININGS[name]("chameleon")
        stats = torch_chameleon.swap_stats()
    assert differences(name, results) == []
    assert stats["bytes_in"] == stats["bytes_out"] == stats["evictions"] == 0
    return stats["peak_logical_bytes"]


@contextmanager
def budget(size, oversubscription=None):
    """A budget whose peaks are counted from now."""
    values = {"hbm_budget": size}
    if oversubscription is not None:
        values["oversubscription"] = oversubscription
    gc.collect()  # schedulers and optimizers of other trainings are cycles
    with torch_chameleon.config.patch(**values):
        torch_chameleon.reset_swap_stats()
        assert torch_chameleon.swap_stats()["logical_bytes"] == 0
        yield
        torch.chameleon.synchronize()
        stats = torch_chameleon.swap_stats()
        assert stats["peak_resident_bytes"] <= stats["hbm_budget"] == size
        assert stats["peak_host_bytes"] <= stats["host_budget"]


def budget_for(name, k):
    return math.ceil(peak_bytes(name) / k)


def differences(name, results):
    """Names of all tensors that are not the native ones, bit for bit."""
    expected = native(name)
    assert results.keys() == expected.keys()
    return [
        key for key in expected if not same_bits(results[key], expected[key])
    ]
