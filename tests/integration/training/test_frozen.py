"""A frozen model costs one transfer out, ever."""

import torch
import torch_chameleon
from support import moved, same_bits
from torch import nn


def test_forward_loop_moves_nothing_out():
    torch.manual_seed(0)
    native = nn.Sequential(
        *(nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(16))
    ).requires_grad_(False)
    x = torch.randn(4, 256)
    expected = native(x)
    weights = sum(p.nbytes for p in native.parameters())
    with torch_chameleon.config.patch(hbm_budget=weights // 2):
        model, x = native.to("chameleon"), x.chameleon()
        assert same_bits(model(x), expected)
        results = []
        difference = moved(
            lambda: results.extend(model(x).cpu() for _ in range(3))
        )
        assert all(same_bits(result, expected) for result in results)
        assert difference["bytes_out"] == 0
        assert difference["bytes_in"] >= weights
        assert difference["clean_evictions"] > 0
        results.clear()
        model.cpu()
