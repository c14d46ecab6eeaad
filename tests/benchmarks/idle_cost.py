#!/usr/bin/env python3
"""What profiler and policy cost where there is nothing to swap.

    python tests/benchmarks/idle_cost.py [--keep FOLDER]

Trains a small transformer on `cpu` with room for everything, policy
"forecast". Prints the instructions that an op takes in the lines of profiler/
and memory/policy/ (wherever they are inline), what torch.profiler adds to the
same ops, and by how much ours is less.

Counted by callgrind, as in op_instructions.py: the difference of two loops of
different length, so that neither start-up nor what torch.profiler does after
the run is in it. Needs valgrind with its headers and a C compiler.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import pathlib
import tempfile
from collections.abc import Callable

from op_instructions import Profile, profiles_of, rows

LOOPS = (2, 8)  # steps
WARM = 100  # more ops than are looked at where new ones turned up
FOLDERS = ("profiler/", "memory/policy/")


def make_step(width: int, layers: int, length: int) -> Callable[[], None]:
    """Returns a training step of a small transformer."""
    import torch
    import torch_chameleon
    from torch import nn
    from torch.nn import functional

    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch_chameleon.config.policy = "forecast"
    model = nn.Sequential(
        *(
            nn.TransformerEncoderLayer(
                width, 4, 4 * width, dropout=0.0, batch_first=True
            )
            for _ in range(layers)
        )
    ).to("chameleon")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    x = torch.randn(8, length, width, device="chameleon")

    def step() -> None:
        functional.mse_loss(model(x), x).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_chameleon.step()

    return step


def ops_of(step: Callable[[], None]) -> int:
    import torch_chameleon

    before = torch_chameleon.swap_stats()["ops"]
    step()
    return torch_chameleon.swap_stats()["ops"] - before


def counted(library: str) -> None:
    """Runs the loops; called inside valgrind."""
    from torch.profiler import ProfilerActivity, profile

    requests = ctypes.CDLL(library)
    libc = ctypes.CDLL(None)
    step = make_step(64, 2, 16)
    gc.disable()
    for _ in range(WARM):
        step()
    ops = ops_of(step)

    def loop(kind: str, watched: contextlib.AbstractContextManager) -> None:
        with watched:
            step()
            for count in LOOPS:
                libc.malloc_trim(0)
                requests.begin()
                for _ in range(count):
                    step()
                requests.end(f"{kind}/{count}/{ops}".encode())

    loop("alone", contextlib.nullcontext())
    loop(
        "torch.profiler",
        profile(
            activities=[ProfilerActivity.CPU],
            record_shapes=True,
            profile_memory=True,
        ),
    )


def own_instructions(profile: Profile) -> int:
    """Returns those in our folders' lines, wherever these are inline."""
    return sum(
        cost
        for file, function, cost in rows(profile.path)
        if "chameleon::" in function
        and any(folder in file for folder in FOLDERS)
    )


def report(profiles: dict[str, Profile]) -> None:
    """Prints instructions per op, ours and torch.profiler's."""
    by_loop = {}
    for name, profile in profiles.items():
        kind, count, ops = name.split("/")
        by_loop[kind, int(count)] = profile
    steps = LOOPS[1] - LOOPS[0]

    def per_op(kind: str, cost: Callable[[Profile], int]) -> float:
        short, long = (cost(by_loop[kind, count]) for count in LOOPS)
        return (long - short) / steps / int(ops)

    whole = per_op("alone", lambda profile: profile.total)
    ours = per_op("alone", own_instructions)
    theirs = per_op("torch.profiler", lambda profile: profile.total) - whole
    print(f"{ops} ops a step, {whole:.0f} instructions an op, of these")
    print(f"profiler and policy {ours:8.0f}")
    print(f"torch.profiler adds {theirs:8.0f}")
    print(f"less overhead       {100 * (1 - ours / theirs):8.1f} %")


def main() -> None:
    """Prints instructions per op."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--keep", help="keep callgrind's files in this folder")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        counted(options.inside)
        return
    with tempfile.TemporaryDirectory() as temporary:
        root = pathlib.Path(options.keep or temporary)
        report(profiles_of(__file__, root))


if __name__ == "__main__":
    main()
