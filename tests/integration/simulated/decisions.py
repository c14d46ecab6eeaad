"""A training whose every memory decision is logged, as a program.

    python decisions.py DEVICE MODEL RESULT [KERNEL_MEMORY]

DEVICE is `cpu` (bytes here, the clock of a simulated GPU) or `simulated` (no
bytes; what kernels allocate comes from KERNEL_MEMORY, if given). RESULT gets
the log and the figures, as JSON.
"""

import gc
import json
import pathlib
import sys

import torch
import torch_chameleon
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch_chameleon import _C, _testing, config
from torch_chameleon.demo.model import GPT, Shape

GPU = "rtx3090"
STEPS = 4
BUDGETS = (1.5, 3)  # peak over budget


class Experts(nn.Module):
    """A mixture of experts whose routing is fixed, so that shapes are, too."""

    def __init__(self, width=96, experts=4, layers=3):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.gates = nn.ModuleList(
            nn.Linear(width, experts) for _ in range(layers)
        )
        self.layers = nn.ModuleList(
            nn.ModuleList(
                nn.Sequential(
                    nn.Linear(width, 4 * width),
                    nn.GELU(),
                    nn.Linear(4 * width, width),
                )
                for _ in range(experts)
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 256)

    def forward(self, tokens):
        x = self.embed(tokens).flatten(0, 1)
        for gate, experts in zip(self.gates, self.layers, strict=True):
            weights = gate(x).softmax(-1)
            parts = x.chunk(len(experts))
            x = x + torch.cat(
                [expert(part) for expert, part in zip(experts, parts)]  # noqa: B905
            ) * weights.amax(-1, keepdim=True)
        return self.head(x)


def gpt():
    return GPT(Shape(layers=3, width=96, heads=4, context=32, batch=8))


MODELS = {"gpt": gpt, "experts": Experts}


def batches(steps):
    draws = torch.Generator().manual_seed(1)
    for _ in range(steps):
        yield tuple(
            torch.randint(256, (8, 32), generator=draws) for _ in range(2)
        )


def train(name, device, before_step=lambda step: None):
    torch.manual_seed(0)
    model = MODELS[name]().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for step, (x, y) in enumerate(batches(STEPS * (len(BUDGETS) + 1))):
        before_step(step)
        logits = model(x.to(device))
        loss = F.cross_entropy(logits.flatten(0, -2), y.to(device).flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().cpu() for p in model.parameters()]


def main(device, name, result, kernel_memory=None):
    torch.set_num_threads(1)
    gc.disable()  # what is in a cycle dies when it likes
    if device == "cpu":
        _testing.set_cpu_clock(GPU)
    else:
        config.physical_device = "simulated"
        config.simulated_gpu = GPU
    if kernel_memory is not None:
        rows = json.loads(pathlib.Path(kernel_memory).read_text())
        _testing.set_kernel_memory([tuple(row) for row in rows])
    config.policy = "forecast"
    config.hbm_budget = "64MiB"
    config.host_budget = "1GiB"
    _C.start_decision_log(10_000_000)
    figures = []

    def before_step(step):
        if step % STEPS:
            return
        figures.append(torch_chameleon.swap_stats())
        if step > 0:
            peak = figures[1]["peak_logical_bytes"]
            k = BUDGETS[step // STEPS - 1]
            config.hbm_budget = int(peak / k) // 512 * 512
        torch_chameleon.reset_swap_stats()

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        made = train(name, "chameleon", before_step)
        figures.append(torch_chameleon.swap_stats())
        log = _C.decision_log()
        if device == "cpu":
            native = train(name, "cpu")
            for ours, theirs in zip(made, native, strict=True):
                assert torch.equal(ours, theirs)
    _C.check_invariants(0, 3)
    pathlib.Path(result).write_text(
        json.dumps({"log": log, "figures": figures})
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
