"""Threads whose working sets exceed the budget together but not alone."""

import threading

import torch
import torch_chameleon
from support import MIB, same_bits
from torch import nn
from trainings import budget

THREADS = 8
WIDTH = 256


def work(device, seed):
    """A small training; its operands of one op are below 1 MiB."""
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(WIDTH, WIDTH, generator=generator) for _ in range(6)]
    x = torch.randn(64, WIDTH, generator=generator).to(device)
    layers = nn.ParameterList(w.div(16).to(device) for w in weights)
    optimizer = torch.optim.SGD(layers.parameters(), 0.1, foreach=True)
    for _ in range(3):
        y = x
        for layer in layers:
            y = torch.tanh(y @ layer)
        optimizer.zero_grad()
        y.square().mean().backward()
        optimizer.step()
    return [p.detach().cpu() for p in layers]


def test_eight_threads():
    expected = [work("cpu", seed) for seed in range(THREADS)]
    results, errors = {}, []

    def run(seed):
        try:
            results[seed] = work("chameleon", seed)
        except BaseException as error:
            errors.append(error)

    with budget(3 * MIB, oversubscription=64.0):
        threads = [
            threading.Thread(target=run, args=(seed,), daemon=True)
            for seed in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert errors == []
        stats = torch_chameleon.swap_stats()
        assert stats["peak_logical_bytes"] > 2 * stats["hbm_budget"]
        assert stats["bytes_in"] > 0
    for seed in range(THREADS):
        assert all(map(same_bits, results[seed], expected[seed]))
