"""A replica of a training, which torchft heals from another one.

Usage: replica.py MODEL OUT STEPS WIDTH, with MODEL of survivor.py. Each life
adds to OUT/lives.REPLICA the step before and after its first quorum, and each
step its number, how many replicas took part and a digest of all parameters and
of the optimizer. The last one leaves what it used in OUT/REPLICA.json. With
LATER_S in the environment a life that is not the first begins so much later,
and the others go on slowly, so that it begins before they are done.
"""

import json
import os
import pathlib
import sys
import time

import torch
import torch_chameleon
import torchft
from survivor import MODELS, batch, digest, memory
from torch.nn import functional as F  # noqa: N812


def main(kind, out, steps, width):
    torch.set_num_threads(1)
    torch_chameleon.config.physical_device = "cpu"
    replica = int(os.environ["CHAMELEON_REPLICA_NUMBER"])
    replicas = int(os.environ["CHAMELEON_REPLICAS_MEET"].partition(",")[2])
    later_s = float(os.environ.get("LATER_S", 0))
    out = pathlib.Path(out)
    if (out / f"lives.{replica}").exists():
        time.sleep(later_s)
    torch.manual_seed(0)
    manager = torch_chameleon.elastic.manager(timeout_seconds=15)
    model = MODELS[kind](int(width)).to("chameleon")
    model = torchft.DistributedDataParallel(
        manager,
        model,
        broadcast_buffers=False,  # torchft would keep each step's for ever
    )
    adamw = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer = torchft.Optimizer(manager, adamw)
    state = torch_chameleon.elastic.State(
        model=model, optimizer=adamw, manager=manager, step=0
    )
    lives = open(out / f"lives.{replica}", "a", buffering=1)  # noqa: SIM115
    begun = state.step
    is_healed = False
    while state.step < int(steps):
        optimizer.zero_grad()  # who takes part; a replica heals here
        if not is_healed:
            print("life", begun, state.step, file=lives)
            is_healed = True
        x, y = batch(kind, 4 * state.step + replica)
        F.cross_entropy(state.model(x).flatten(0, -2), y.flatten()).backward()
        optimizer.step()
        words = manager.current_step(), manager.num_participants()
        # Statistics of batch normalization are each replica's own.
        print("step", *words, digest(model.parameters(), adamw), file=lives)
        state.step = manager.current_step()
        state.commit()
        is_slow = later_s and manager.num_participants() < replicas
        time.sleep(0.5 if is_slow else 0.05)
    (out / f"{replica}.json").write_text(json.dumps(memory()))
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
