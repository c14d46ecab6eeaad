"""Generators: every random op takes one, and draws what native draws."""

import copy
import pickle

import pytest
import torch
from support import same_bits

DRAWS = {
    "rand": lambda d, g: torch.rand(5, generator=g, device=d),
    "randn": lambda d, g: torch.randn(5, generator=g, device=d),
    "randint": lambda d, g: torch.randint(9, (5,), generator=g, device=d),
    "randperm": lambda d, g: torch.randperm(9, generator=g, device=d),
    "uniform_": lambda d, g: torch.empty(5, device=d).uniform_(generator=g),
    "normal_": lambda d, g: torch.empty(5, device=d).normal_(generator=g),
    "exponential_": lambda d, g: torch.empty(5, device=d).exponential_(
        generator=g
    ),
    "geometric_": lambda d, g: torch.empty(5, device=d).geometric_(
        0.5, generator=g
    ),
    "cauchy_": lambda d, g: torch.empty(5, device=d).cauchy_(generator=g),
    "log_normal_": lambda d, g: torch.empty(5, device=d).log_normal_(
        generator=g
    ),
    "random_": lambda d, g: torch.empty(5, device=d).random_(9, generator=g),
    "bernoulli_": lambda d, g: torch.empty(5, device=d).bernoulli_(
        0.5, generator=g
    ),
    "bernoulli": lambda d, g: torch.bernoulli(
        torch.full((5,), 0.5, device=d), generator=g
    ),
    "multinomial": lambda d, g: torch.multinomial(
        torch.ones(5, device=d), 3, generator=g
    ),
    "poisson": lambda d, g: torch.poisson(
        torch.full((5,), 3.0, device=d), generator=g
    ),
    "normal": lambda d, g: torch.normal(
        torch.ones(5, device=d), torch.ones(5, device=d), generator=g
    ),
    "binomial": lambda d, g: torch.binomial(
        torch.full((5,), 9.0, device=d),
        torch.full((5,), 0.5, device=d),
        generator=g,
    ),
    "trunc_normal_": lambda d, g: torch.nn.init.trunc_normal_(
        torch.empty(5, device=d), generator=g
    ),
    "orthogonal_": lambda d, g: torch.nn.init.orthogonal_(
        torch.empty(4, 4, device=d), generator=g
    ),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws(name):
    draw = DRAWS[name]
    native, ours = (
        torch.Generator(device).manual_seed(7)
        for device in ("cpu", "chameleon")
    )
    for _ in range(2):
        one, other = draw("cpu", native), draw("chameleon", ours)
        assert other.is_chameleon
        assert same_bits(one, other)
    assert same_bits(native.get_state(), ours.get_state())


def test_state_of_one_generator():
    g = torch.Generator("chameleon").manual_seed(5)
    assert g.device == torch.device("chameleon:0")
    assert g.initial_seed() == 5
    state = g.get_state()
    assert state.device.type == "cpu"
    first = torch.rand(3, generator=g, device="chameleon")
    g.set_state(state)
    assert same_bits(first, torch.rand(3, generator=g, device="chameleon"))
    assert g.seed() == g.initial_seed() != 5
    with pytest.raises(TypeError):
        g.set_state(state.float())


@pytest.mark.parametrize(
    "copier",
    [
        copy.copy,
        copy.deepcopy,
        lambda g: pickle.loads(pickle.dumps(g)),
        lambda g: g.clone_state(),
    ],
)
def test_copies(copier):
    g = torch.Generator("chameleon").manual_seed(5)
    torch.rand(3, generator=g, device="chameleon")
    other = copier(g)
    assert other.device == g.device
    assert other.initial_seed() == 5
    if other is not g:
        one = torch.rand(3, generator=g, device="chameleon")
        assert same_bits(
            one, torch.rand(3, generator=other, device="chameleon")
        )


def test_generators_are_their_devices_own():
    with pytest.raises(RuntimeError, match="chameleon"):
        torch.rand(3, generator=torch.Generator(), device="chameleon")
    with pytest.raises(RuntimeError, match="cpu"):
        torch.rand(3, generator=torch.Generator("chameleon"))


@pytest.mark.parametrize("devices", [None, [0], ["chameleon:0"]])
def test_fork_rng(devices):
    def draw():
        return torch.rand(4, device="chameleon")

    torch.manual_seed(0)
    expected = draw(), draw()
    torch.manual_seed(0)
    first = draw()
    with torch.random.fork_rng(devices, device_type="chameleon"):
        torch.manual_seed(99)
        draw()
    assert same_bits(first, expected[0])
    assert same_bits(draw(), expected[1])


def test_states_of_all_devices():
    states = torch.chameleon.get_rng_state_all()
    assert len(states) == torch.chameleon.device_count()
    first = torch.rand(3, device="chameleon")
    torch.chameleon.set_rng_state_all(states)
    assert same_bits(first, torch.rand(3, device="chameleon"))
    torch.chameleon.set_rng_state(states[0], "chameleon:0")
    assert same_bits(first, torch.rand(3, device="chameleon"))


def test_device_context():
    with torch.device("chameleon"):
        assert torch.Generator("chameleon").device.type == "chameleon"
        assert torch.rand(2).is_chameleon
        assert torch.randperm(3).is_chameleon


def test_data_loader_and_samplers_take_a_cpu_generator():
    """The default device must not change what a sampler draws."""
    from torch.utils.data import DataLoader, RandomSampler

    def order(**how):
        g = torch.Generator().manual_seed(1)
        sampler = RandomSampler(range(20), generator=g)
        return [int(i) for i in DataLoader(range(20), sampler=sampler, **how)]

    expected = order()
    torch.chameleon.manual_seed(5)
    assert order() == expected
