"""Threads and random ops against the CPU, under a budget that changes."""

import gc
import os
import random
import threading
import time

import pytest
import torch
import torch_chameleon
from soak import soak
from support import MIB, dropping
from torch_chameleon import _C
from trainings import budget

SECONDS = float(os.environ.get("CHAMELEON_TEST_SECONDS", "20"))


def baseline():
    gc.collect()
    torch.chameleon.synchronize()
    stats = torch_chameleon.swap_stats()
    for name in ("logical_bytes", "pinned_bytes", "foreign_bytes"):
        assert stats[name] == 0
    assert stats["held_bytes"] == 0
    _C.check_invariants(0, 3)
    return stats


@pytest.fixture
def small_budget():
    with budget(3 * MIB, oversubscription=16.0):
        yield
        stats = baseline()
        assert stats["evictions"] > 0


@pytest.fixture
def walk(record_property):
    """`soak`, counted."""

    def run(seed, threads, **how):
        start = time.monotonic()
        ops = soak(seed, threads, **how)
        duration_ms = round(1e3 * (time.monotonic() - start))
        record_property("random_operations", ops)
        record_property("thread_milliseconds", threads * duration_ms)
        return ops

    return run


def test_eight_threads(small_budget, walk):
    assert walk(seed=1, threads=8, ops=60) >= 8 * 60


def test_two_threads_that_drop(small_budget, walk):
    with dropping("random", 3):
        assert walk(seed=2, threads=2, ops=80) >= 2 * 80


class Budgets:
    """Changes the budget whenever it is called."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.changes = 0
        self.refusals = []

    def __call__(self):
        wished = self.random.randrange(2 * MIB, 6 * MIB, 4096)
        try:
            torch_chameleon.config.hbm_budget = wished
        except ValueError as error:
            self.refusals.append(str(error))
            return
        self.changes += 1
        stats = torch_chameleon.swap_stats()
        assert stats["hbm_budget"] == wished
        assert stats["resident_bytes"] <= wished


def test_the_budget_changes_under_load(walk):
    with budget(6 * MIB, oversubscription=16.0):
        budgets = Budgets(4)
        walk(seed=3, threads=4, ops=100, beside=budgets)
        assert budgets.changes > 0
        assert all("pinned" in refusal for refusal in budgets.refusals)
        torch_chameleon.config.hbm_budget = 6 * MIB
        baseline()


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["forecast", "lru"])
def test_soak(policy, walk):
    """CHAMELEON_TEST_SECONDS of it, by default 20."""
    with (
        torch_chameleon.config.patch(policy=policy),
        budget(6 * MIB, oversubscription=16.0),
    ):
        budgets = Budgets(5)
        seed = random.SystemRandom().randrange(1 << 20)
        ops = walk(seed, threads=8, seconds=SECONDS, beside=budgets)
        print(
            f"seed {seed}: {ops} ops of 8 threads in {SECONDS} s, "
            f"{budgets.changes} budgets, {len(budgets.refusals)} refused"
        )
        torch_chameleon.config.hbm_budget = 6 * MIB
        baseline()


def train(stream, seed, results):
    """A training on a stream of its own, and its autograd on it."""
    draws = torch.Generator().manual_seed(seed)
    values = [torch.randn(128, 128, generator=draws) for _ in range(5)]
    expected = run(values, "cpu")
    with torch.chameleon.stream(stream):
        results[seed] = (expected, run(values, "chameleon"))


def run(values, device):
    weights = [v.div(11).to(device).requires_grad_() for v in values]
    optimizer = torch.optim.Adam(weights, foreach=True)
    x = values[0].to(device)
    for _ in range(4):
        y = x
        for weight in weights:
            y = torch.tanh(y @ weight)
        optimizer.zero_grad()
        y.square().mean().backward()
        optimizer.step()
    return [weight.detach().cpu() for weight in weights]


def test_two_models_on_two_streams():
    results = {}
    with budget(MIB, oversubscription=16.0):
        threads = [
            threading.Thread(
                target=train,
                args=(torch.chameleon.Stream(), seed, results),
                daemon=True,
            )
            for seed in (1, 2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
        assert torch_chameleon.swap_stats()["evictions"] > 0
    assert sorted(results) == [1, 2]
    for expected, got in results.values():
        assert all(map(torch.equal, expected, got))


def test_loader_workers_and_a_pin_thread_beside_a_training(small_budget):
    from torch.utils.data import DataLoader, TensorDataset

    x = torch.arange(64 * 512.0).view(64, 512)
    loader = DataLoader(
        TensorDataset(x),
        batch_size=8,
        num_workers=2,
        pin_memory=True,
        multiprocessing_context="fork",
    )
    weight = torch.eye(512)
    ours = weight.to("chameleon")
    tanh = torch.tanh
    for _ in range(2):
        for (batch,) in loader:
            assert batch.is_pinned()
            y = batch.to("chameleon", non_blocking=True)
            for _ in range(3):
                ours = tanh(ours * 0.5) + (y.T @ y).tanh()
                weight = tanh(weight * 0.5) + (batch.T @ batch).tanh()
            assert torch.equal(ours.cpu(), weight)
