"""Seeded numbers are the native ones."""

import pytest
import torch
from support import same_bits

DRAWS = {
    "rand": lambda d: torch.rand(1000, device=d),
    "randn": lambda d: torch.randn(1000, device=d),
    "randint": lambda d: torch.randint(9, (1000,), device=d),
    "randperm": lambda d: torch.randperm(100, device=d),
    "bernoulli": lambda d: torch.full((100,), 0.3, device=d).bernoulli(),
    "normal_": lambda d: torch.empty(100, device=d).normal_(1, 2),
    "exponential_": lambda d: torch.empty(100, device=d).exponential_(),
    "multinomial": lambda d: torch.ones(50, device=d).multinomial(20),
    "dropout": lambda d: torch.dropout(torch.ones(100, device=d), 0.5, True),
    "rand_like": lambda d: torch.rand_like(torch.ones(10, device=d)),
    "uniform_strided": lambda d: torch.empty(9, 8, device=d).t().uniform_(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_seeded_draw(name):
    torch.manual_seed(1)
    native = DRAWS[name]("cpu"), torch.rand(3)
    torch.manual_seed(1)
    ours = DRAWS[name]("chameleon"), torch.rand(3)
    assert ours[0].is_chameleon
    assert same_bits(ours[0], native[0])
    assert same_bits(ours[1], native[1])  # consumed as much


def test_own_generator():
    native = torch.Generator().manual_seed(3)
    ours = torch.Generator("chameleon").manual_seed(3)
    assert ours.device.type == "chameleon"
    expected = torch.randn(100, generator=native)
    actual = torch.randn(100, generator=ours, device="chameleon")
    assert same_bits(actual, expected)
    assert ours.initial_seed() == 3


def test_state():
    torch.chameleon.manual_seed(7)
    assert torch.chameleon.initial_seed() == 7
    state = torch.chameleon.get_rng_state()
    first = torch.rand(5, device="chameleon")
    torch.chameleon.set_rng_state(state)
    assert same_bits(torch.rand(5, device="chameleon"), first)
    torch.chameleon.set_rng_state_all([state])
    assert same_bits(torch.rand(5, device="chameleon"), first)
    assert torch.chameleon.get_rng_state_all()[0].device.type == "cpu"


def test_seed():
    torch.chameleon.seed()
    one = torch.chameleon.initial_seed()
    torch.chameleon.seed_all()
    assert torch.chameleon.initial_seed() != one
    torch.chameleon.manual_seed_all(4)
    assert torch.chameleon.initial_seed() == 4


def test_fork_rng():
    torch.manual_seed(2)
    with torch.random.fork_rng(device_type="chameleon"):
        first = torch.rand(5, device="chameleon")
    assert same_bits(torch.rand(5, device="chameleon"), first)


def test_wrong_generator():
    with pytest.raises(RuntimeError, match="chameleon"):
        torch.rand(2, device="chameleon", generator=torch.Generator())
