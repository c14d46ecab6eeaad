"""Optimizers of list ops where memory is short: native bits, fewer bytes."""

import functools
import os
import subprocess
import sys

import pytest
import torch
import torch_chameleon
from support import ADVERSARIES, MIB, needs_testing, same_bits
from torch import nn
from torch_chameleon import _testing
from trainings import OPTIMIZERS, budget

KINDS = OPTIMIZERS | {
    "nadam": (torch.optim.NAdam, {"decoupled_weight_decay": True}),
    "adagrad": (torch.optim.Adagrad, {"lr_decay": 0.1}),
}
ROWS = (64, 256, 8, 128, 256, 1, 128, 64, 128, 256)  # of 512 floats


def steps(device, name, clip=False):
    """Three steps; returns all that is left, on the CPU."""
    kind, options = KINDS[name]
    draws = torch.Generator().manual_seed(0)
    parameters = [
        torch.randn(rows, 512, generator=draws).to(device).requires_grad_()
        for rows in ROWS
    ]
    optimizer = kind(parameters, foreach=True, **options)
    left = []
    for _ in range(3):
        for parameter in parameters:
            gradient = torch.randn(parameter.shape, generator=draws)
            parameter.grad = gradient.to(device)
        if clip:
            norm = nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
            left.append(norm.cpu())
        optimizer.step()
    return left + [
        tensor.detach().cpu()
        for parameter in parameters
        for tensor in (
            parameter,
            parameter.grad,
            *optimizer.state[parameter].values(),
        )
        if isinstance(tensor, torch.Tensor)
    ]


@functools.cache
def native(name, clip=False):
    return steps("cpu", name, clip)


@functools.cache
def peak_bytes(name):
    with budget(256 * MIB):
        steps("chameleon", name)
        return torch_chameleon.swap_stats()["peak_logical_bytes"]


@pytest.mark.parametrize("k", [1.25, 2, 4])
@pytest.mark.parametrize("name", KINDS)
def test_bits(name, k):
    with budget(int(peak_bytes(name) / k), oversubscription=8.0):
        results = steps("chameleon", name)
        # Where most of the peak is what list ops make, deferring them does.
        assert torch_chameleon.swap_stats()["evictions"] > 0 or k == 1.25
    assert all(map(same_bits, results, native(name)))


def test_clipping():
    with budget(peak_bytes("adamw") // 3, oversubscription=8.0):
        results = steps("chameleon", "adamw", clip=True)
    assert all(map(same_bits, results, native("adamw", True)))


@pytest.mark.parametrize("stress", ["all", "random"])
def test_evicted_before_each_op(stress):
    with budget(64 * MIB):
        _testing.set_stress(stress, 7)
        try:
            results = steps("chameleon", "adamw")
        finally:
            _testing.set_stress("never", 0)
    assert all(map(same_bits, results, native("adamw")))


_UNDER_ADVERSARY = """
import sys
from torch_chameleon import _testing
_testing.set_cpu_adversary(sys.argv[1])
from test_list_runs import *
for name in sys.argv[2:]:
    size = sum(ROWS) * 512 * 4
    with torch_chameleon.config.patch(
        hbm_budget=size * 2, oversubscription=8.0
    ):
        results = steps("chameleon", name)
        stats = torch_chameleon.swap_stats()
        assert stats["evictions"] > 0
        assert stats["peak_resident_bytes"] <= size * 2
        torch_chameleon._C.check_invariants(0, 3)
    assert all(map(same_bits, results, native(name))), name
"""


@needs_testing
@pytest.mark.slow
@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_with_an_adversary(adversary):
    names = ["sgd", "adam", "adamw", "rmsprop", "nadam"]
    done = subprocess.run(
        [sys.executable, "-c", _UNDER_ADVERSARY, adversary, *names],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# ---- what moves ------------------------------------------------------------


def test_adamw_moves_its_state_once_a_step():
    """Parameters, gradients and two moments of 4 MiB each, in 4 MiB."""
    parameters = [
        torch.ones(64, 1024, device="chameleon").requires_grad_()
        for _ in range(16)
    ]
    optimizer = torch.optim.AdamW(parameters)
    with budget_of_list_ops():
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        for _ in range(2):
            torch_chameleon._C.evict_all(0)
            torch.chameleon.synchronize()
            torch_chameleon.reset_swap_stats()
            optimizer.step()
            assert _testing.deferred_op_count() == 8
            stats = torch_chameleon.swap_stats()
            assert stats["bytes_in"] == 16 * MIB
            assert stats["bytes_out"] <= 12 * MIB  # gradients are clean
            assert stats["ops"] == 16 * 8


def budget_of_list_ops():
    # Exact figures of what ops move by themselves.
    return torch_chameleon.config.patch(
        hbm_budget=4 * MIB,
        oversubscription=16.0,
        policy="lru",
        step_marks="manual",  # a mark does what was deferred
    )


# ---- GradScaler ------------------------------------------------------------


def scaled_steps(device):
    torch.manual_seed(0)
    layers = [nn.Linear(128, 128) for _ in range(12)]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    left = []
    for step in range(5):
        x = torch.full((16, 128), float(step + 1)).to(device)
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        if step == 2:  # this step is skipped
            layers[3].weight.grad[0, 0] = torch.inf
        scaler.unscale_(optimizer)
        left.append(nn.utils.clip_grad_norm_(model.parameters(), 2.0).cpu())
        scaler.step(optimizer)
        scaler.update()
        left.append(torch.tensor(scaler.get_scale()))
    return left + [p.detach().cpu() for p in model.parameters()]


def test_grad_scaler_skips_the_same_step():
    expected = scaled_steps("cpu")
    with budget(MIB, oversubscription=16.0):
        results = scaled_steps("chameleon")
        assert torch_chameleon.swap_stats()["evictions"] > 0
    assert len(results) == len(expected)
    assert all(map(same_bits, results, expected))
