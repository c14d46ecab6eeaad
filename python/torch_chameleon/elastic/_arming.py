"""Lays the failure that CHAMELEON_CHAOS has for this life of a rank."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from torch_chameleon import _C, chameleon
from torch_chameleon._config import config
from torch_chameleon.elastic import chaos
from torch_chameleon.elastic._copies import Copies, Value
from torch_chameleon.elastic._replicas import REPLICA_VARIABLE
from torch_chameleon.elastic._slot import Slot
from torch_chameleon.elastic._training import Training

_FILLING_BYTES = 1 << 20


def arm(training: Training) -> None:
    """Lays it, if there is one.

    Args:
        training: What it happens to.

    Raises:
        ValueError: The variable says what it cannot.
    """
    failures = chaos.parse(os.environ.get(chaos.VARIABLE, ""))
    if training.generations is None:
        return
    replica = os.environ.get(REPLICA_VARIABLE)
    if replica is not None:  # each has lives of its own
        failures = [each for each in failures if each.rank == int(replica)]
    life = training.memory.ledger.lives
    for failure in failures[life - 1 : life]:
        if replica or failure.rank % training.world == training.rank:
            _Laid(failure, training)


class _Laid:
    """A failure at its place: it comes when that place is reached."""

    def __init__(self, failure: chaos.Failure, training: Training):
        self._failure = failure
        self._training = training
        self._came = False
        objects = training.objects.values()
        modules = [
            inner
            for each in objects
            if isinstance(each, torch.nn.Module)
            for inner in each.modules()
            if not list(inner.children())
        ]
        if failure.phase == "commit":
            assert training.generations is not None
            training.generations.copies = _Halfway(self)
        elif failure.phase == "optimizer":
            for each in objects:
                if isinstance(each, torch.optim.Optimizer):
                    each.register_step_post_hook(self.come)
        elif modules:
            modules[len(modules) // 2].register_forward_hook(self._in_forward)

    def come(self, *_: Any) -> None:
        """Fails, if it is the time."""
        done = self._training.steps - (self._failure.phase == "commit")
        if self._came or done < self._failure.step:
            return
        self._came = True
        _FAIL[self._failure.kind](self._training)

    def _in_forward(self, module: Any, inputs: Any, output: Any) -> None:
        if self._failure.phase == "forward":
            self.come()
        elif isinstance(output, torch.Tensor) and output.requires_grad:
            output.register_hook(self.come)


class _Halfway(Copies):
    """Copies a half of the tensors before the failure comes."""

    def __init__(self, failure: _Laid):
        super().__init__()
        self._failure = failure

    def begin(
        self,
        blocks: Sequence[torch.Tensor],
        tensors: Sequence[torch.Tensor],
        had: Sequence[Value],
    ) -> list[Value]:
        half = len(blocks) // 2
        first = super().begin(blocks[:half], tensors[:half], had[:half])
        self._failure.come()
        return first + super().begin(blocks[half:], tensors[half:], had[half:])


def _kill(training: Training) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop(training: Training) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _raise(training: Training) -> None:
    raise torch.AcceleratorError("chaos: an error that was asked for")


def _fill(training: Training) -> None:
    """No memory is free any more, and it takes some: the device refuses it."""
    used = _C.swap_stats(chameleon.current_device())
    config.recompute = "off"
    config.host_budget = max(used["host_bytes"], 1)
    config.hbm_budget = max(used["resident_bytes"], _FILLING_BYTES)
    held = []
    while True:
        held.append(torch.ones(_FILLING_BYTES // 4, device="chameleon"))


def _kill_sibling(training: Training) -> None:
    """Another child of our parent; ourselves, if there is none."""
    parent, own = os.getppid(), os.getpid()
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    others = [int(each) for each in children.split() if int(each) != own]
    os.kill(others[0] if others else own, signal.SIGKILL)


def _flip(training: Training) -> None:
    found = _newest(training).read()
    if found is not None:
        largest = max(found[1], key=torch.Tensor.numel)
        largest[largest.numel() // 2] ^= 1
    _kill(training)


def _lose(training: Training) -> None:
    _newest(training)  # is whole by now
    memory = training.memory
    for slot in (*memory.slots, *memory.partner_slots):
        slot.discard()
    _kill(training)


def _tear(training: Training) -> None:
    _newest(training).discard()
    _kill(training)


def _newest(training: Training) -> Slot:
    assert training.generations is not None
    training.generations.settle()
    return max(training.memory.slots, key=lambda each: each.generation)


_FAIL = {
    "kill": _kill,
    "stop": _stop,
    "error": _raise,
    "full": _fill,
    "sibling": _kill_sibling,
    "flip": _flip,
    "tear": _tear,
    "lose": _lose,
}
