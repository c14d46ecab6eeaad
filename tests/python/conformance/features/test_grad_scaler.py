"""torch.amp.GradScaler("chameleon"): scales, skipped steps and state, in bits.

The reference is GradScaler("cpu") on the same calls: growth, backoff, clipping
of unscaled gradients, several optimizers, optimizers that take scale and
overflow themselves (fused), saved and loaded state.
"""

import io
import warnings

import pytest
import torch
import torch_chameleon
from support import MIB, same_bits
from torch import nn

OPTIMIZERS = {
    "sgd_foreach": (torch.optim.SGD, {"momentum": 0.9, "foreach": True}),
    "sgd_loop": (torch.optim.SGD, {"momentum": 0.9, "foreach": False}),
    "sgd_fused": (torch.optim.SGD, {"momentum": 0.9, "fused": True}),
    "adam_foreach": (torch.optim.Adam, {"foreach": True}),
    "adam_fused": (torch.optim.Adam, {"amsgrad": True, "fused": True}),
    "adamw_loop": (torch.optim.AdamW, {"foreach": False}),
    "adamw_fused": (torch.optim.AdamW, {"fused": True}),
    "adagrad_fused": (torch.optim.Adagrad, {"fused": True}),
    "rmsprop_foreach": (torch.optim.RMSprop, {"foreach": True}),
}


class Run:
    """A small model, its scaler, and all that its steps leave."""

    def __init__(self, device, optimizer="sgd_foreach", **scaler):
        torch.manual_seed(0)
        self.device = device
        self.model = nn.Sequential(
            nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)
        ).to(device)
        kind, options = OPTIMIZERS[optimizer]
        self.optimizer = kind(self.model.parameters(), lr=0.01, **options)
        self.scaler = torch.amp.GradScaler(device, **scaler)
        self.draws = torch.Generator().manual_seed(1)
        self.left = []

    def backward(self, dtype=torch.float16, poison=None):
        x = torch.randn(8, 16, generator=self.draws).to(self.device)
        self.optimizer.zero_grad()
        with torch.autocast(self.device, dtype=dtype):
            loss = self.model(x).float().square().mean()
        self.scaler.scale(loss).backward()
        if poison is not None:
            self.model[0].weight.grad[0, 0] = poison
        self.note(loss)

    def step(self):
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.note(torch.tensor(self.scaler.get_scale()))
        for parameter in self.model.parameters():
            self.note(parameter, parameter.grad)
            self.note(*self.optimizer.state[parameter].values())

    def note(self, *values):
        self.left += [
            value.detach().cpu().clone()
            for value in values
            if isinstance(value, torch.Tensor)
        ]


def same(action):
    """Runs an action on both devices; returns the run on chameleon."""
    runs = []
    for device in ("cpu", "chameleon"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            runs.append(action(device))
    native, ours = runs
    assert len(native.left) == len(ours.left)
    assert all(map(same_bits, native.left, ours.left))
    assert native.scaler.state_dict() == ours.scaler.state_dict()
    return ours


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_growth_backoff_and_skipped_steps(optimizer):
    """Overflow in the third and fourth step: skipped, and the scale halves."""
    scales = []

    def action(device):
        run = Run(device, optimizer, init_scale=1024.0, growth_interval=2)
        scales.clear()
        for poison in (None, None, float("inf"), float("nan"), None, None):
            before = [p.detach().clone() for p in run.model.parameters()]
            run.backward(poison=poison)
            run.step()
            scales.append(run.scaler.get_scale())
            skipped = all(map(torch.equal, before, run.model.parameters()))
            assert skipped is (poison is not None)
        return run

    same(action)
    assert scales == [1024.0, 2048.0, 1024.0, 512.0, 512.0, 1024.0]


def test_a_scale_that_overflows_by_itself():
    """No poison: gradients in float16 overflow until the scale fits."""

    def action(device):
        run = Run(device, init_scale=2.0**32, backoff_factor=2.0**-6)
        for _ in range(5):
            run.backward()
            run.step()
        return run

    assert same(action).scaler.get_scale() < 2.0**32


@pytest.mark.parametrize("optimizer", ["sgd_foreach", "adam_fused"])
def test_clipping_unscaled_gradients(optimizer):
    def action(device):
        run = Run(device, optimizer, init_scale=2.0**10)
        for poison in (None, float("inf"), None):
            run.backward(poison=poison)
            run.scaler.unscale_(run.optimizer)
            run.note(
                nn.utils.clip_grad_norm_(
                    run.model.parameters(), 0.05, foreach=True
                )
            )
            run.step()
        return run

    same(action)


def test_unscaling_twice_is_refused():
    run = Run("chameleon")
    run.backward()
    run.scaler.unscale_(run.optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        run.scaler.unscale_(run.optimizer)


def test_float16_gradients_are_refused():
    weight = nn.Parameter(torch.ones(2, device="chameleon").half())
    optimizer = torch.optim.SGD([weight], 0.1)
    scaler = torch.amp.GradScaler("chameleon")
    scaler.scale(weight.sum()).backward()
    with pytest.raises(ValueError, match="unscale FP16 gradients"):
        scaler.step(optimizer)


def test_two_optimizers_skip_apart():
    """Overflow in one optimizer's gradients does not hold the other back."""

    def action(device):
        run = Run(device, "sgd_foreach")
        parameters = list(run.model.parameters())
        kind = torch.optim.Adam
        first = torch.optim.SGD(parameters[:2], 0.1, foreach=True)
        second = kind(parameters[2:], 0.1, foreach=True)
        for poison in (float("inf"), None):
            run.backward(poison=poison)
            second_before = parameters[-1].detach().clone()
            run.scaler.step(first)
            run.scaler.step(second)
            run.scaler.update()
            assert not torch.equal(second_before, parameters[-1])
            run.note(*parameters, torch.tensor(run.scaler.get_scale()))
        return run

    same(action)


def test_several_losses_are_scaled_together():
    def action(device):
        run = Run(device)
        one = torch.ones(3, device=device)
        scaled = run.scaler.scale([one, (one * 2, one.double())])
        run.note(scaled[0], *scaled[1])
        return run

    same(action)


def test_state_goes_through_a_file():
    """A scaler goes on where a saved one stood, on either device."""

    def action(device):
        run = Run(device, init_scale=512.0, growth_interval=3)
        for _ in range(2):
            run.backward()
            run.step()
        file = io.BytesIO()
        torch.save(run.scaler.state_dict(), file)
        file.seek(0)
        run.scaler = torch.amp.GradScaler(device, init_scale=2.0)
        run.scaler.load_state_dict(torch.load(file, weights_only=True))
        for poison in (None, float("inf")):
            run.backward(poison=poison)
            run.step()
        return run

    assert same(action).scaler.get_scale() == 512.0


def test_a_given_scale_replaces_the_learned_one():
    def action(device):
        run = Run(device)
        run.backward()
        run.scaler.step(run.optimizer)
        run.scaler.update(torch.tensor(64.0, device=device))
        run.note(torch.tensor(run.scaler.get_scale()))
        run.backward()
        run.scaler.step(run.optimizer)
        run.scaler.update(32.0)
        return run

    assert same(action).scaler.get_scale() == 32.0


def test_disabled_scaler_is_transparent():
    def action(device):
        run = Run(device, enabled=False)
        run.backward(torch.bfloat16)
        run.step()
        return run

    same(action)


@pytest.mark.parametrize("optimizer", ["adamw_fused", "adam_foreach"])
def test_state_larger_than_the_budget(tight, optimizer):
    """Lists in chunks: all gradients are checked before any is unscaled."""
    kind, options = OPTIMIZERS[optimizer]

    def train(device):
        draws = torch.Generator().manual_seed(0)
        parameters = [
            torch.randn(256, 512, generator=draws).to(device).requires_grad_()
            for _ in range(12)
        ]
        optimizer = kind(parameters, **options)
        scaler = torch.amp.GradScaler(device, init_scale=4.0)
        left = []
        for poison in (None, float("inf"), None):
            for parameter in parameters:
                drawn = torch.randn(parameter.shape, generator=draws)
                parameter.grad = drawn.to(device)
            scaler.scale(torch.ones((), device=device))
            if poison is not None:
                parameters[-1].grad[-1, -1] = poison
            scaler.step(optimizer)
            scaler.update()
            left.append(torch.tensor(scaler.get_scale()))
        states = [
            value
            for parameter in parameters
            for value in optimizer.state[parameter].values()
        ]
        return left + [
            value.detach().cpu()
            for value in (*parameters, *(p.grad for p in parameters), *states)
        ]

    native = train("cpu")
    with torch_chameleon.config.patch(oversubscription=8.0):
        tight(4 * MIB)
        torch_chameleon.reset_swap_stats()
        ours = train("chameleon")
        assert torch_chameleon.swap_stats()["evictions"] > 0
    assert len(native) == len(ours)
    assert all(map(same_bits, native, ours))
