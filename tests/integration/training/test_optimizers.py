"""Every optimizer leaves the native bits, with its state out of memory."""

import pytest
import torch
import torch_chameleon
from support import MIB, same_bits
from trainings import OPTIMIZERS, budget

IMPLEMENTATIONS = {
    "foreach": {"foreach": True},
    "for_loop": {"foreach": False},
    "fused": {"fused": True},
}
FUSED = {"sgd", "adam", "adam_amsgrad", "adamw", "adamw_maximize", "adagrad"}
CASES = [
    (name, implementation)
    for name in OPTIMIZERS
    for implementation in IMPLEMENTATIONS
    if implementation != "fused" or name in FUSED
]


def steps(device, name, implementation):
    """Three steps on 8 MiB of parameters; returns all that is left."""
    kind, options = OPTIMIZERS[name]
    draws = torch.Generator().manual_seed(0)
    parameters = [
        torch.randn(rows, 512, generator=draws).to(device).requires_grad_()
        for rows in (512, 1024, 8, 512, 1024, 1, 1016)
    ]
    optimizer = kind(parameters, **options, **IMPLEMENTATIONS[implementation])
    for _ in range(3):
        for parameter in parameters:
            gradient = torch.randn(parameter.shape, generator=draws)
            parameter.grad = gradient.to(device)
        optimizer.step()
    return [
        tensor.detach().cpu()
        for parameter in parameters
        for tensor in (parameter, *optimizer.state[parameter].values())
        if isinstance(tensor, torch.Tensor)
    ]


@pytest.mark.parametrize(("name", "implementation"), CASES)
def test_bits(name, implementation):
    expected = steps("cpu", name, implementation)
    with budget(12 * MIB, oversubscription=8.0):
        results = steps("chameleon", name, implementation)
        assert torch_chameleon.swap_stats()["evictions"] > 0
    assert len(results) == len(expected)
    assert all(map(same_bits, results, expected))


def test_default_is_foreach():
    """Optimizers take the list ops on this device without being asked."""
    parameter = torch.ones(3, device="chameleon", requires_grad=True)
    parameter.grad = torch.ones_like(parameter)
    names = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            names.append(op.name())
            return op(*args, **(kwargs or {}))

    with Watch():
        torch.optim.AdamW([parameter]).step()
        torch.nn.utils.clip_grad_norm_([parameter], 1.0)
    assert any(name.startswith("aten::_foreach_") for name in names)
    assert "aten::_foreach_norm.Scalar" in names


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mixed_precision_with_scaler(dtype):
    """Autocast and GradScaler: the same casts, scales and skipped steps."""

    def train(device):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 8)
        ).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=True)
        scaler = torch.amp.GradScaler(device, init_scale=2.0**30)
        left = []
        for _ in range(4):
            x = torch.randn(16, 64).to(device)
            with torch.autocast(device, dtype=dtype):
                loss = model(x).float().square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            left.append(torch.tensor(scaler.get_scale()))
        return left + [p.detach().cpu() for p in model.parameters()]

    results = train("chameleon")
    scales = {scale.item() for scale in results[:4]}
    assert len(scales) > 1 or dtype is torch.bfloat16
    assert all(torch.isfinite(result).all() for result in results)
