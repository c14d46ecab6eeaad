"""The random numbers that come next, wherever they are drawn."""

import random
import sys
from typing import Any

import torch

from torch_chameleon import chameleon


class RandomNumbers:
    """Generators of Python, torch's CPU, the device and, if imported, NumPy."""

    def state_dict(self) -> dict[str, Any]:
        """All of their states."""
        state = {
            "python": random.getstate(),
            "cpu": torch.get_rng_state(),
            "chameleon": chameleon.get_rng_state_all(),
        }
        if "numpy" in sys.modules:
            kind, keys, *rest = sys.modules["numpy"].random.get_state()
            state["numpy"] = (kind, keys.tolist(), *rest)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Draws go on from these states.

        Args:
            state: What `state_dict` returned.
        """
        random.setstate(state["python"])
        torch.set_rng_state(state["cpu"])
        # On the CPU there is a device for each rank, of which one may be lost.
        there = state["chameleon"][: chameleon.device_count()]
        for index, each in enumerate(there):
            chameleon.set_rng_state(each, index)
        if "numpy" in state:
            import numpy

            numpy.random.set_state(state["numpy"])
