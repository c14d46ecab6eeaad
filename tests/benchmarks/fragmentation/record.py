"""Records trainings whose steps differ, or have an order of their own.

    python tests/benchmarks/fragmentation/record.py [NAME ...]

On the simulated device, with room for all. A trace has the steps of one round
one after the other, as `torch_chameleon.profiler.export_trace` writes them,
with a line at the end of each. A second run writes the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pathlib
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable

import torch
import torch_chameleon
from torch_chameleon import config, profiler

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "policy")]

import workloads  # noqa: E402
from workloads import DEVICE, Step  # noqa: E402

TRACES = HERE / "traces"
ROUNDS = 6  # the trace is of the last one


def moe_varying_routing() -> list[Step]:
    """A mixture of experts; each step routes its tokens anew."""
    draw = torch.Generator("cpu")
    step = workloads.moe(draw, blocks=4, experts=8)

    def routed(seed: int) -> None:
        draw.manual_seed(seed)
        step()

    return [lambda seed=seed: routed(seed) for seed in range(6)]


def llama_varying_lengths() -> list[Step]:
    """Half of a 1.3B Llama; each step has sequences of another length."""
    model = workloads.on_device(
        lambda: workloads.causal_lm(
            hidden_size=2048,
            intermediate_size=5504,
            num_hidden_layers=12,
            num_attention_heads=16,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    lengths = random.Random(0)

    def step(length: int) -> None:
        tokens = torch.zeros(8, length, dtype=torch.long, device=DEVICE)
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    drawn = [lengths.randrange(256, 2049, 8) for _ in range(8)]
    return [lambda length=length: step(length) for length in drawn]


def llama_7b_pipeline() -> list[Step]:
    """The first of four ranks of a pipeline that train Llama 2 7B.

    Each rank has two chunks of four layers; eight micro-batches in the order of
    interleaved 1F1B. What other ranks send comes into new tensors, and what
    they are sent goes when it is sent.
    """
    ranks, chunks, micro_batches, tokens_each = 4, 2, 8, 2048
    layers = 32 // (ranks * chunks)
    llama = workloads.on_device(
        lambda: workloads.causal_lm(num_hidden_layers=layers * chunks).model
    )
    del llama.norm
    optimizer = torch.optim.AdamW(llama.parameters(), fused=True)
    tokens = torch.zeros(1, tokens_each, dtype=torch.long, device=DEVICE)
    positions = torch.arange(tokens_each, device=DEVICE)[None]

    def received() -> torch.Tensor:
        return torch.empty(
            1, tokens_each, llama.config.hidden_size, device=DEVICE
        )

    # Of each chunk, oldest first: micro-batches that wait for their backward.
    waiting: list[list[torch.autograd.graph.GradientEdge]] = [[], []]

    def forward(number: int) -> None:
        chunk = number // ranks % chunks
        first = chunk == 0
        x = llama.embed_tokens(tokens) if first else received().requires_grad_()
        angles = llama.rotary_emb(x, position_ids=positions)
        for layer in llama.layers[chunk * layers : (chunk + 1) * layers]:
            x = layer(x, position_embeddings=angles)
        waiting[chunk].append(torch.autograd.graph.get_gradient_edge(x))

    def backward(number: int) -> None:
        chunk = chunks - 1 - number // ranks % chunks
        torch.autograd.backward(waiting[chunk].pop(0), received())

    def step() -> None:
        total = micro_batches * chunks
        ahead = 2 * (ranks - 1) + (chunks - 1) * ranks
        for number in range(total + ahead):
            if number < total:
                forward(number)
            if number >= ahead:
                backward(number - ahead)
        optimizer.step()
        optimizer.zero_grad()

    return [step]


TRAININGS: dict[str, Callable[[], list[Step]]] = {
    "moe_varying_routing": moe_varying_routing,
    "llama_varying_lengths": llama_varying_lengths,
    "llama_7b_pipeline": llama_7b_pipeline,
}


def trace_of(name: str, training: Callable[[], list[Step]]) -> str:
    """The last round's trace; once a process."""
    config.physical_device = "simulated"
    config.simulated_gpu = {
        "base": "h200",
        "memory": "2TiB",
        "host_memory": "2TiB",
    }
    config.hbm_budget = "1TiB"
    config.step_marks = "manual"
    config.policy = "lru"
    steps = training()
    torch.chameleon.synchronize()
    torch_chameleon.step()  # what came before is no part of a round
    ends: list[int] = []
    for _ in range(ROUNDS):
        ends.clear()
        for step in steps:
            step()
            ends.append(profiler.state()["matching"]["position"])
        torch_chameleon.step()
    with tempfile.TemporaryDirectory() as folder:
        exported = pathlib.Path(folder, "trace.jsonl")
        profiler.export_trace(exported)
        lines = exported.read_text().splitlines()
    header, *ops, _ = map(json.loads, lines)
    ends[-1] = len(ops)
    rows = [header | {"name": name, "hbm_budget": 0}]
    for number, op in enumerate(ops, 1):
        rows.append(op)
        if number in ends:
            rows.append({"step": ends.index(number) + 1})
    return "".join(
        json.dumps(row, separators=(",", ":")) + "\n" for row in rows
    )


def record(name: str) -> None:
    """Writes the trace of a training; once a process."""
    text = trace_of(name, TRAININGS[name])
    TRACES.mkdir(exist_ok=True)
    path = TRACES / f"{name}.jsonl.gz"
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{path.name}: {len(text.splitlines())} lines")


def main() -> None:
    """Records all, or those that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=list(TRAININGS))
    names = parser.parse_args().names
    if len(names) == 1:
        record(names[0])
        return
    for name in names:  # a device is set up once a process
        subprocess.run([sys.executable, __file__, name], check=True)


if __name__ == "__main__":
    main()
