"""Real text that every machine has: the standard library of its Python."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from torch_chameleon.demo.model import Shape

_TEXT_BYTES = 4 << 20


def standard_library(max_bytes: int = _TEXT_BYTES) -> Tensor:
    """Reads Python sources, in a fixed order, as a tensor of bytes.

    Args:
        max_bytes: Where to stop.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    text = bytearray()
    packages = ("", "asyncio", "email", "http", "json", "logging", "unittest")
    for package in packages:
        for path in sorted((root / package).glob("*.py")):
            text += path.read_bytes()
    if not text:
        raise SystemExit(
            f"torch_chameleon demo: no Python sources in {root}; use a Python "
            "that has its standard library as files"
        )
    return torch.frombuffer(text[:max_bytes], dtype=torch.uint8).long()


def batches(
    text: Tensor, shape: Shape, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields (tokens, next tokens), each (batch, context), for ever."""
    draws = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(
            len(text) - shape.context - 1, (shape.batch, 1), generator=draws
        )
        rows = text[starts + torch.arange(shape.context + 1)]
        yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
