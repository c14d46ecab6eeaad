"""Workers that an agent started again have a store of their own."""

import importlib

import pytest
import torch.distributed as dist
from torch_chameleon._patches import agent_store


def test_it_is_in_place():
    places = importlib.import_module("torch.distributed.rendezvous")
    assert places._create_c10d_store.__wrapped__.__module__ == places.__name__


@pytest.mark.parametrize(
    ("life", "is_agents", "machines", "apart"),
    [
        ("1", "True", "1", True),
        ("2", "True", "1", True),
        ("0", "True", "1", False),
        (None, None, None, False),
        ("1", "False", "1", False),
        ("1", "True", "2", False),
    ],
)
def test_which_workers(monkeypatch, life, is_agents, machines, apart):
    for name, value in {
        "TORCHELASTIC_RESTART_COUNT": life,
        "TORCHELASTIC_USE_AGENT_STORE": is_agents,
        "GROUP_WORLD_SIZE": machines,
    }.items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    agents = dist.HashStore()
    agents.set("address", "of the first life")
    store = agent_store._store_of_this_life(lambda: agents)()
    assert store.check(["address"]) is not apart
    assert (store is agents) is not apart
