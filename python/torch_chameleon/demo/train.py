"""One training run, in a process of its own so that its counters are its own.

The process prints one JSON object per line: {"step", "loss"} after every step,
and {"result"} at the end.
"""

import functools
import hashlib
import json
import math
import statistics
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (its usual name)

import torch_chameleon
from torch_chameleon import _C
from torch_chameleon.demo.data import batches, standard_library
from torch_chameleon.demo.model import GPT, Shape, generate

_PROMPT = b"def "
_GENERATED_BYTES = 160
_HISTORY_STEPS = 8  # of the memory over time; more would blur the picture


@dataclass(frozen=True)
class Run:
    """What to train, where and how."""

    shape: Shape
    steps: int
    seed: int
    device: str  # "chameleon", or the native device to compare with
    config: dict[str, str | int | float]  # of torch_chameleon
    foreach: bool = True
    generates: bool = True

    def to_json(self) -> str:
        """The run as text; `from_json` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Run":
        """Reads what `to_json` wrote."""
        fields = json.loads(text)
        fields["shape"] = Shape(**fields["shape"])
        return cls(**fields)


def train(run: Run) -> dict[str, Any]:
    """Trains, printing every step, and returns what was measured."""
    for key, value in run.config.items():
        setattr(torch_chameleon.config, key, value)
    on_chameleon = run.device == "chameleon"
    if on_chameleon:
        _C.reset_memory_history(0)
    torch.manual_seed(run.seed)
    model = GPT(run.shape).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=run.foreach)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, functools.partial(_cosine, run.steps)
    )
    data = batches(standard_library(), run.shape, run.seed)
    losses: list[float] = []
    times_ns: list[int] = []
    moved: list[tuple[int, int]] = []
    for step in range(1, run.steps + 1):
        before = torch_chameleon.swap_stats() if on_chameleon else {}
        start_ns = time.perf_counter_ns()
        tokens, targets = (part.to(run.device) for part in next(data))
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(
            model.parameters(), 1.0, foreach=run.foreach
        )
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        times_ns.append(time.perf_counter_ns() - start_ns)
        if on_chameleon:
            after = torch_chameleon.swap_stats()
            moved.append(
                (
                    after["bytes_in"] - before["bytes_in"],
                    after["bytes_out"] - before["bytes_out"],
                )
            )
            if step <= _HISTORY_STEPS:
                history_steps, history = step, _C.memory_history(0)
        _print(step=step, loss=losses[-1])
        del logits, loss
    result: dict[str, Any] = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "losses": losses,
        "loss_bits": [struct.pack("<f", loss).hex() for loss in losses],
        "state_sha256": _digest(_state(model, optimizer)),
        # The first step allocates what the others find.
        "step_ns": int(statistics.median(times_ns[1:] or times_ns)),
        "threads": torch.get_num_threads(),
    }
    if on_chameleon:
        steady = moved[1:] or moved
        result["bytes_in_per_step"] = sum(b for b, _ in steady) // len(steady)
        result["bytes_out_per_step"] = sum(b for _, b in steady) // len(steady)
        result["stats"] = torch_chameleon.swap_stats()
        result["history_steps"] = history_steps
        result["history"] = history
        result["physical_device"] = _C.physical_device()
    if run.generates:
        text = generate(model, _PROMPT, _GENERATED_BYTES, run.seed)
        result["sample"] = text.decode("utf-8", "replace")
    return result


def _cosine(steps: int, step: int) -> float:
    """Learning rate over its highest: a warm-up, then half a cosine."""
    warm_up = max(1, steps // 6)
    if step < warm_up:
        return (step + 1) / warm_up
    done = (step - warm_up) / max(1, steps - warm_up)
    return (1 + math.cos(math.pi * done)) / 2


def _state(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> Iterator[Tensor]:
    """Parameters, their gradients and the optimizer's state."""
    for parameter in model.parameters():
        yield parameter.detach()
        if parameter.grad is not None:
            yield parameter.grad
        for value in optimizer.state[parameter].values():
            if isinstance(value, Tensor):
                yield value


def _digest(tensors: Iterator[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _print(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def main() -> None:
    """What the process does: its argument is `Run.to_json`'s text."""
    _print(result=train(Run.from_json(sys.argv[1])))
