"""Computations whose bits are compared: the same code on "cuda" and here.

Each takes a device and returns tensors, all on the CPU. Seeds and inputs are
the same everywhere; TF32 and autotuning are off.
"""

import itertools
import random
import sys
import types
import unittest

import numpy as np
import torch
from integration.llama import Llama
from torch import nn

KERNELS = torch.nn.attention.SDPBackend
# So many modules of cuDNN's layers: one op with its workspace, some 60 MiB on
# a GPU, has to fit a quarter of all.
DEPTH = 20


def _trained(model, batch, device, optimizer, steps=4, amp=False):
    torch.manual_seed(11)
    model = model.to(device).train()
    optimizer = optimizer(model.parameters())
    scaler = torch.amp.GradScaler(device, enabled=amp)
    draws = torch.Generator().manual_seed(5)
    kept = []
    for _ in range(steps):
        given = batch(draws).to(device)
        with torch.autocast(device, dtype=torch.float16, enabled=amp):
            loss = model(given).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        kept.append(loss.detach())
    return [each.cpu() for each in (*kept, *model.state_dict().values())]


def _mlp():
    torch.manual_seed(1)
    parts = [
        layer
        for _ in range(8)
        for layer in (nn.Linear(512, 512), nn.GELU(), nn.LayerNorm(512))
    ]
    return nn.Sequential(*parts)


def _images():
    torch.manual_seed(2)
    blocks, width = [], 3
    for _ in range(2 * DEPTH):
        blocks += [nn.Conv2d(width, 32, 3, padding=1)]
        blocks += [nn.BatchNorm2d(32), nn.ReLU()]
        width = 32
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())


TEXT = 512  # tokens of one, and how wide the Llama that reads it is
HALF_ROWS = 1024  # of what autocasts to float16


def _rows(draws, count=1024):
    return torch.randn(count, 512, generator=draws)


def _half_rows(draws):
    return _rows(draws, HALF_ROWS)


def _pictures(draws):
    return torch.randn(32, 3, 32, 32, generator=draws)


def _sequences(draws):
    return torch.randn(32, 64, 128, generator=draws)


class _Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(3)
        self.parts = nn.ModuleList(
            kind(128, 64, 2, dropout=0.25, bidirectional=True)
            for _ in range(DEPTH)
        )

    def forward(self, batch):
        for part in self.parts:
            batch = part(batch)[0]
        return batch


def adamw_fused(device):
    def fused(parameters):
        return torch.optim.AdamW(parameters, fused=True)

    return _trained(_mlp(), _rows, device, fused)


def adamw_foreach(device):
    def foreach(parameters):
        return torch.optim.AdamW(parameters, foreach=True)

    return _trained(_mlp(), _rows, device, foreach)


def scaled_sgd(device):
    return _trained(_mlp(), _half_rows, device, torch.optim.SGD, amp=True)


def convolutions(device):
    return _trained(_images(), _pictures, device, torch.optim.SGD)


def lstm(device):
    return _trained(_Recurrent(nn.LSTM), _sequences, device, torch.optim.SGD)


def gru(device):
    return _trained(_Recurrent(nn.GRU), _sequences, device, torch.optim.SGD)


def transformer(device):
    torch.manual_seed(4)
    layer = nn.TransformerEncoderLayer(128, 8, 256, 0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return _trained(model, _sequences, device, torch.optim.Adam)


def deterministic_llama(device):
    """In bfloat16, where PyTorch is told to use no kernel that varies."""
    vocabulary = 4 * TEXT
    torch.manual_seed(12)
    model = Llama(4, TEXT, 4, 3 * TEXT, vocabulary).bfloat16()

    def texts(draws):
        return torch.randint(0, vocabulary, (4, TEXT), generator=draws)

    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        return _trained(model, texts, device, torch.optim.AdamW)
    finally:
        torch.use_deterministic_algorithms(before)


def attention(device):
    kept = []
    kinds = (
        KERNELS.FLASH_ATTENTION,
        KERNELS.EFFICIENT_ATTENTION,
        KERNELS.CUDNN_ATTENTION,
        KERNELS.MATH,
    )
    for kind, width, causal, dropout in itertools.product(
        kinds, (64, 60), (False, True), (0.0, 0.2)
    ):
        draws = torch.Generator().manual_seed(6)
        operands = [
            torch.randn(2, 4, 128, width, generator=draws)
            .half()
            .to(device)
            .requires_grad_()
            for _ in range(3)
        ]
        torch.manual_seed(7)
        try:
            with torch.nn.attention.sdpa_kernel(kind):
                output = nn.functional.scaled_dot_product_attention(
                    *operands, is_causal=causal, dropout_p=dropout
                )
        except RuntimeError as error:  # not every width, not every GPU
            if "No available kernel" not in str(error):
                raise
            continue
        output.float().square().sum().backward()
        kept += [output.detach(), *(each.grad for each in operands)]
    return [each.cpu() for each in kept]


def random_numbers(device):
    torch.manual_seed(8)
    kept = [torch.randn(1000, device=device), torch.rand(1000, device=device)]
    kept.append(torch.randperm(1000, device=device).float())
    kept.append(nn.functional.dropout(kept[0], 0.5))
    own = torch.Generator(device=device).manual_seed(9)
    kept.append(torch.randn(1000, device=device, generator=own))
    return [each.cpu() for each in kept]


def streams(device):
    module = getattr(torch, device)
    kept = []
    side = module.Stream()
    values = torch.arange(1 << 20, device=device, dtype=torch.float32)
    for turn in range(8):
        side.wait_stream(module.current_stream())
        with module.stream(side):
            twice = values * 2 + turn
            values.record_stream(side)
        module.current_stream().wait_stream(side)
        values = twice.sqrt() + 1
    kept.append(values)
    pinned = torch.arange(4096.0).pin_memory().to(device, non_blocking=True)
    return [each.cpu() for each in (*kept, pinned + 1)]


# Not compared: what has no values, layouts that chameleon refuses, kernels
# that are compiled for one device by hand, and what wants its indices on the
# CPU whatever the device.
LEFT_OUT = ("empty", "new_empty", "resize", "sparse", "to_sparse", "jiterator")
LEFT_OUT += ("tensor_split",)


def operators(prefixes=()):
    """PyTorch's own database, less what is not compared."""
    return [
        op
        for op in _database()
        if torch.float32 in op.supported_dtypes("cuda")
        and not op.name.startswith(LEFT_OUT)
        and op.name.startswith(prefixes or "")
    ]


def _database():
    try:
        import expecttest  # noqa: F401
    except ImportError:  # the database needs its test case's name only
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db


def samples(op, count=2):
    """The first samples, on the CPU, the same in every process."""
    # OpInfo.sample_inputs() would seed devices, and look for a running test.
    found = op.sample_inputs_func(op, "cpu", torch.float32, False)
    for number in range(count):
        torch.default_generator.manual_seed(number)
        random.seed(number)
        np.random.seed(number)
        try:
            yield next(found := iter(found))
        except (StopIteration, RuntimeError, ImportError):
            return


def moved(sample, device):
    """A sample with all its tensors there."""

    def move(value):
        if not isinstance(value, torch.Tensor):
            return value
        # A copy, so that no device sees more of a storage than the view.
        copied = value.detach().to(device, copy=True)
        return copied.requires_grad_(value.requires_grad)

    there = sample.transform(move)
    if "device" in there.kwargs:
        there.kwargs["device"] = torch.device(device)
    return there
