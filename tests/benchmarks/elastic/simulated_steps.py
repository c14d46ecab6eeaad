"""Records what a step takes on 32 simulated cards, and on fewer: steps.json.

    python tests/benchmarks/elastic/simulated_steps.py [--ranks N ...]

Rank 0 of so many trains a Llama on a simulated H100, eight to a machine, each
number of ranks in a process of its own. All ranks together take the same
samples a step, whole ones: the slowest rank's step is the one that counts. What
the package's own model says of a rank less is written beside it, by the step
that ran; nothing of the benchmark that plays failures knows one from the other.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE / "steps.json"
RANKS = range(32, 23, -1)
MACHINE = 8  # cards
SAMPLES, MICRO_BATCH, TOKENS = 512, 2, 2048
GPU, ROOM = "h100", 75 << 30


class Training(NamedTuple):
    """What is trained, how, and with how much less memory than its peak."""

    sizes: dict[str, int]  # of the Llama
    is_sharded: bool  # FSDP2, else DDP
    k: float  # the peak by the budget
    steps: int  # until a plan is followed


SMALL_LLAMA = {
    "hidden_size": 2048,
    "intermediate_size": 5504,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
}
TRAININGS = {
    "Llama 7B, FSDP2": Training({}, True, 1, 4),
    "Llama 7B, FSDP2, k = 2": Training({}, True, 2, 7),
    "Llama 1.3B, DDP, k = 2": Training(SMALL_LLAMA, False, 2, 7),
}


def share(samples: int, ranks: int) -> list[int]:
    """The micro-batches of the rank that takes the most samples.

    Args:
        samples: Of all ranks.
        ranks: How many there are.
    """
    mine = math.ceil(samples / ranks)
    whole, rest = divmod(mine, MICRO_BATCH)
    return [MICRO_BATCH] * whole + [rest] * bool(rest)


def record(name: str, ranks: int, budget: int) -> dict[str, float]:
    """Trains in this process, a few steps.

    Args:
        name: Of one of `TRAININGS`.
        ranks: Of which this is the first.
        budget: Bytes of the card that are given.
    """
    from torch_chameleon.plan.ranks import Ranks

    with Ranks(__file__, ranks, 1).installed():  # DDP's later steps, at once
        return _record(TRAININGS[name], ranks, budget)


def _record(training: Training, ranks: int, budget: int) -> dict[str, float]:
    sys.path[:0] = [str(HERE.parent / "policy")]
    os.environ["LOCAL_WORLD_SIZE"] = str(MACHINE)
    import torch
    import torch.distributed as dist
    import torch_chameleon
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch_chameleon.elastic import _measuring
    from workloads import causal_lm, on_device

    config = torch_chameleon.config
    config.physical_device, config.simulated_gpu = "simulated", GPU
    config.hbm_budget, config.oversubscription = budget, 64.0
    config.recompute = "off"
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    model = on_device(lambda: causal_lm(**training.sizes))
    if training.is_sharded:
        mesh = init_device_mesh("chameleon", (ranks,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batches = [
        torch.randint(0, 32000, (size, TOKENS), device="chameleon")
        for size in share(SAMPLES, ranks)
    ]
    for _ in range(training.steps):
        for batch in batches:
            model(batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    last = torch_chameleon.profiler.last_step()
    said = _measuring.slowdown(0, ranks, training.is_sharded)
    own = [p.to_local() if training.is_sharded else p
           for p in model.parameters()]  # fmt: skip
    kept = 3 * sum(p.nbytes for p in own)  # with both moments
    sharded = kept if training.is_sharded else 0
    return {
        "step_s": last["duration_ns"] / 1e9,
        "slowdown": said or 0,
        "longer": _measuring.longer(0, ranks, sharded) or 0,
        "kept_bytes": kept,
        "peak_bytes": torch_chameleon.swap_stats()["peak_logical_bytes"],
    }


def in_a_process(name: str, ranks: int, budget: int) -> dict[str, float]:
    """As `record`, elsewhere."""
    done = subprocess.run(
        [sys.executable, __file__, "--record", name, str(ranks), str(budget)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=list(RANKS))
    parser.add_argument("--training", nargs="+", default=list(TRAININGS))
    parser.add_argument("--record", nargs=3, metavar=("NAME", "RANKS", "BYTES"))
    options = parser.parse_args()
    if options.record:
        name, ranks, budget = options.record
        print(json.dumps(record(name, int(ranks), int(budget))))
        return
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in options.training:
        rows = found.setdefault(name, {})
        k = TRAININGS[name].k
        if k == 1:
            budget = ROOM
        else:  # what all ranks' peak is, by the room that one step has
            first = rows.get("32") or in_a_process(name, 32, ROOM)
            budget = int(first["peak_bytes"] / k)
        for ranks in options.ranks:
            rows[str(ranks)] = in_a_process(name, ranks, budget)
            print(name, ranks, rows[str(ranks)], flush=True)
            RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
