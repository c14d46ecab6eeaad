"""The n-th failure, once and for ever, of everything that a step asks for.

After each: a typed error or none; each tensor holds its bits; no pin is left;
the invariants hold; the next step works, and gives what it would have given.
"""

import functools
import gc
import itertools
import pathlib
import random

import emulated_cuda
import pytest
import torch
import torch_chameleon
from shadow import Shadow
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch_chameleon import _C, _testing

# A completion that fails takes the device with it: tests/cpp has that.
POINTS = [
    point
    for point in _testing.fault_points()
    if point not in ("reserve", "completion")
]
SEED = 7


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        weights = torch.softmax(q @ k.transpose(1, 2), dim=-1)
        x = x + self.out(weights @ v)
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Gpt(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(64, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, 64)

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens))).flatten(0, 1)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8 * 16, 64)

    def forward(self, x):
        x = F.relu(self.norm(self.stem(x)))
        x = F.max_pool2d(F.relu(x + self.norm(self.conv(x))), 2)
        return self.head(x.flatten(1))


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.lstm = nn.LSTM(32, 32, 2, batch_first=True)
        self.head = nn.Linear(32, 64)

    def forward(self, tokens):
        return self.head(self.lstm(self.embed(tokens))[0]).flatten(0, 1)


MODELS = {"gpt": Gpt, "resnet": ResNet, "lstm": Lstm}
BUDGETS = {"gpt": "128KiB", "resnet": "128KiB", "lstm": "320KiB"}


class Training:
    """A training whose every tensor is shadowed."""

    def __init__(self, name):
        torch.manual_seed(0)
        self.model = MODELS[name]().to("chameleon")
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=0.01, foreach=True
        )
        draws = torch.Generator().manual_seed(1)
        if name == "resnet":
            self.x = torch.randn(4, 3, 8, 8, generator=draws)
            self.y = torch.randint(64, (4,), generator=draws)
        else:
            self.x = torch.randint(64, (4, 8), generator=draws)
            self.y = torch.randint(64, (4, 8), generator=draws).flatten()
        self.shadow = Shadow()
        for tensor in self.tensors():
            self.shadow.adopt(tensor)

    def step(self):
        with self.shadow:
            self.optimizer.zero_grad()
            output = self.model(self.x.to("chameleon"))
            loss = F.cross_entropy(output, self.y.to("chameleon"))
            loss.backward()
            self.optimizer.step()
            return loss.item()

    def tensors(self):
        """All tensors that outlive a step."""
        yield from self.model.buffers()
        for parameter in self.model.parameters():
            yield parameter
            if parameter.grad is not None:
                yield parameter.grad
            for value in self.optimizer.state.get(parameter, {}).values():
                if isinstance(value, torch.Tensor) and value.is_chameleon:
                    yield value

    def check(self):
        """All that is alive holds its bits, and nothing is pinned."""
        everything = [*self.tensors(), *self.shadow.alive]
        assert self.shadow.wrong(everything) == 0
        _C.check_invariants(0, 3)
        assert torch_chameleon.swap_stats()["pinned_bytes"] == 0

    def recover(self):
        self.shadow.restore([*self.tensors(), *self.shadow.alive])


def short_of_memory_for(name):
    """A budget that a part of the training's tensors fit in."""
    return torch_chameleon.config.patch(
        hbm_budget=BUDGETS[name], oversubscription=64, policy="lru"
    )


@pytest.fixture
def short_of_memory(name):
    with short_of_memory_for(name):
        yield


@functools.cache
def losses(name, steps):
    training = Training(name)
    return [training.step() for _ in range(steps)]


def passes(name, point):
    """How often the third step of a training passes a point."""
    training = Training(name)
    for _ in range(2):
        training.step()
    assert torch_chameleon.swap_stats()["evictions"] > 0
    _testing.arm_fault(point, 0, False)
    training.step()
    count = _testing.fault_passes(point)
    _testing.disarm_faults()
    return count


def drawn(name, point, for_ever):
    """Which of the passes is to fail.

    Not one of the last: events are pooled, so a later step makes a few less.
    """
    draws = random.Random(f"{SEED} {name} {point} {for_ever}")
    return draws.randint(1, max(1, passes(name, point) * 9 // 10))


def fail(name, point, nth, for_ever, expected):
    """Trains two steps, one with a failure, one more. True: it was met."""
    training = Training(name)
    got = [training.step(), training.step()]
    error = None
    _testing.arm_fault(point, nth, for_ever)
    try:
        got.append(training.step())
    except (RuntimeError, torch.OutOfMemoryError) as raised:
        error = raised
    met = _testing.fault_passes(point) >= nth
    _testing.disarm_faults()
    where = f"{point} {nth} {for_ever}: {error}"
    print(where)
    training.check()
    if error is None:
        assert got == expected[:3]
    else:
        assert "injected failure" in str(error), where
    del error
    gc.collect()
    training.recover()
    got.append(training.step())
    if len(got) == 4:
        assert got == expected
    training.check()
    return met


SAMPLE = [
    (point, for_ever, list(MODELS)[i % len(MODELS)])
    for i, (point, for_ever) in enumerate(
        itertools.product(POINTS, (False, True))
    )
]


@pytest.mark.parametrize(("point", "for_ever", "name"), SAMPLE)
def test_a_step_survives_a_failure(
    point, for_ever, name, short_of_memory, record_property
):
    nth = drawn(name, point, for_ever)
    met = fail(name, point, nth, for_ever, losses(name, 4))
    record_property("faults_injected", int(met))


@pytest.mark.slow
@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "for_ever"])
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("name", MODELS)
def test_a_step_survives_every_failure(
    name, point, for_ever, short_of_memory, record_property
):
    expected = losses(name, 4)
    for nth in itertools.count(1):
        if not fail(name, point, nth, for_ever, expected):
            break
        record_property("faults_injected", 1)


@pytest.mark.skipif(
    not emulated_cuda.can_be_built(), reason=emulated_cuda.NEEDS
)
# Half a minute each: the first stands for all.
@pytest.mark.parametrize(
    ("name", "schedule", "every"),
    [
        pytest.param(name, *how, marks=[pytest.mark.slow] if i else [])
        for i, (name, how) in enumerate(
            itertools.product(
                MODELS,
                [
                    ("late seed=2", False),
                    ("prompt", True),
                    ("random seed=3", True),
                ],
            )
        )
    ],
)
def test_on_emulated_cuda(
    name, schedule, every, request, monkeypatch, record_property
):
    script = pathlib.Path(__file__).with_name("faults_on_emulated_cuda.py")
    folder = request.config.cache.mkdir("emulated_cuda")
    monkeypatch.setenv("CHAMELEON_TEST_TRAINING", name)
    if every:
        monkeypatch.setenv("CHAMELEON_TEST_EVERY_FAULT", "1")
    met = emulated_cuda.outcomes(script, folder, schedule)
    assert met >= 6  # what it takes once, for good, is not taken in the step
    record_property("faults_injected", met)
