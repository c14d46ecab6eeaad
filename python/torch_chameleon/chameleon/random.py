"""Random number generators of the chameleon devices.

Default generator i is the physical device's own: a seeded run draws the
numbers that it would draw natively. Seeding is no first use of the device.
"""

from collections.abc import Iterable

import torch
from torch.types import Device

from torch_chameleon import _C
from torch_chameleon.chameleon._utils import _get_device_index

__all__ = [
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


def _generator(device: Device = None) -> torch.Generator:
    return _C.default_generator(_get_device_index(device, optional=True))


def _generators() -> list[torch.Generator]:
    return [_C.default_generator(index) for index in range(_C.device_count())]


def manual_seed(seed: int) -> None:
    """Seeds the current device. Same as `torch.cuda.manual_seed`."""
    _generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds all devices. Same as `torch.cuda.manual_seed_all`."""
    for generator in _generators():
        generator.manual_seed(int(seed))


def seed() -> None:
    """Seeds the current device with a random number."""
    _generator().seed()


def seed_all() -> None:
    """Seeds all devices with the same random number."""
    generators = _generators()
    random_seed = generators[0].seed()
    for generator in generators[1:]:
        generator.manual_seed(random_seed)


def initial_seed() -> int:
    """Returns the seed of the current device."""
    return _generator().initial_seed()


def get_rng_state(device: Device = "chameleon") -> torch.Tensor:
    """Returns the state of one device's generator as a CPU ByteTensor."""
    return _generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """Returns the states of all devices' generators."""
    return [generator.get_state() for generator in _generators()]


def set_rng_state(
    new_state: torch.Tensor, device: Device = "chameleon"
) -> None:
    """Sets one device's generator to a state of `get_rng_state`."""
    _generator(device).set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets all devices' generators to states of `get_rng_state_all`."""
    for generator, state in zip(_generators(), new_states, strict=True):
        generator.set_state(state)
