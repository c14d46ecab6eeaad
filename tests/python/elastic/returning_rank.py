"""A rank that comes back, within one process."""

import os

import pytest
from torch_chameleon import elastic
from torch_chameleon.elastic import _keeper
from torch_chameleon.elastic._memory import Memory


class Rank:
    """Its memory, and a new life with each state that is made."""

    def __init__(self, monkeypatch):
        self._descriptors = Memory.create(0)
        self._monkeypatch = monkeypatch
        self.memory = self.seen()

    def seen(self):
        """The memory, as another process maps it."""
        return Memory([os.dup(each) for each in self._descriptors])

    def state(self, **objects):
        memory = self.seen()
        self._monkeypatch.setattr(
            _keeper, "find", lambda: _keeper.Memories(memory, [memory])
        )
        made = elastic.State(**objects)
        self.training = vars(made)["_training"]
        return made

    def settle(self):
        """Waits until the last commit is whole."""
        self.training.generations.settle()

    @property
    def newest(self):
        return max(self.seen().slots, key=lambda slot: slot.generation)

    def close(self):
        self.training = None  # pytest keeps us for longer
        for each in self._descriptors:
            os.close(each)


@pytest.fixture(name="rank")
def rank_fixture(monkeypatch):
    made = Rank(monkeypatch)
    yield made
    made.close()
