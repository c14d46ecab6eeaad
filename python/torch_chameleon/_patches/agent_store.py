"""Workers that an elastic agent started again meet at a store of their own.

The agent's store outlives them, and in it stands where the ranks of their first
life listened: whoever connects there is refused (pytorch#167288).
"""

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed


def _store_of_this_life(create: Callable[..., Any]) -> Callable[..., Any]:
    """`_create_c10d_store`."""

    @functools.wraps(create)
    def created(*args: Any, **kwargs: Any) -> Any:
        store = create(*args, **kwargs)
        life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        is_agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        # Agents of several machines do not count alike.
        is_alone = os.environ.get("GROUP_WORLD_SIZE") == "1"
        if life == "0" or not (is_agents and is_alone):
            return store
        return torch.distributed.distributed_c10d.PrefixStore(
            f"chameleon life {life}", store
        )

    return created


def install() -> None:
    """Once a process."""
    if not torch.distributed.is_available():
        return
    # In torch.distributed the name of the module is a function's.
    places: Any = importlib.import_module("torch.distributed.rendezvous")
    places._create_c10d_store = _store_of_this_life(places._create_c10d_store)
