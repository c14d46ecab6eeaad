"""A replica of a training, which torchft heals from another one.

Usage: replica.py OUT STEPS. Each life adds to OUT/lives.REPLICA the step before
and after its first quorum, and each step to OUT/steps.REPLICA its number, how
many replicas took part and a digest of all parameters and of the optimizer.
"""

import os
import pathlib
import sys
import time

import torch
import torch_chameleon
import torchft
from survivor import batch, digest, gpt
from torch.nn import functional as F  # noqa: N812


def main(out, steps):
    torch.set_num_threads(1)
    torch_chameleon.config.physical_device = "cpu"
    replica = os.environ["CHAMELEON_REPLICA_NUMBER"]
    torch.manual_seed(0)
    manager = torch_chameleon.elastic.manager(timeout_seconds=15)
    model = gpt(64, dropout=0.0).to("chameleon")
    model = torchft.DistributedDataParallel(manager, model)
    adamw = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer = torchft.Optimizer(manager, adamw)
    state = torch_chameleon.elastic.State(
        model=model, optimizer=adamw, manager=manager, step=0
    )
    out = pathlib.Path(out)
    begun = state.step
    first = True
    while state.step < int(steps):
        optimizer.zero_grad()  # who takes part; a replica heals here
        if first:
            with open(out / f"lives.{replica}", "a") as file:
                file.write(f"{begun} {state.step}\n")
            first = False
        x, y = batch("gpt", 2 * state.step + int(replica))
        F.cross_entropy(state.model(x).flatten(0, -2), y.flatten()).backward()
        optimizer.step()
        with open(out / f"steps.{replica}", "a") as file:
            words = manager.current_step(), manager.num_participants()
            print(*words, digest(state), file=file)
        state.step = manager.current_step()
        state.commit()
        time.sleep(0.05)
    stats = torch_chameleon.swap_stats()
    assert stats["evictions"] > 0
    assert stats["peak_host_bytes"] <= stats["host_budget"]
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
