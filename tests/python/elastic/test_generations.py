"""Which generation is gone back to, whatever was left."""

import threading

import pytest
import torch
from returning_rank import rank_fixture  # noqa: F401
from torch_chameleon.elastic import _arming, _keeper, chaos
from torch_chameleon.elastic._generations import Generations
from torch_chameleon.elastic._memory import Memory
from torch_chameleon.elastic._slot import Slot
from torch_chameleon.elastic._snapshot import Snapshot


def committed(rank, steps):
    layer = torch.nn.Linear(16, 16)
    state = rank.state(layer=layer, step=0)
    while state.step < steps:
        with torch.no_grad():
            layer.weight.fill_(state.step + 1)
        state.step += 1
        state.commit()
    rank.settle()
    return state


def back(rank):
    """Where the next life begins: its step, and what the weights say."""
    layer = torch.nn.Linear(16, 16)
    state = rank.state(layer=layer, step=0)
    if state.step:
        assert (layer.weight == state.step).all()
    return state


def whole(rank):
    """The generations that are there."""
    return sorted(x.generation for x in rank.memory.slots if x.generation)


def flip(slot):
    _, blocks = slot.read()
    blocks[0][5] ^= 4


def test_the_newest_is_taken(rank):
    committed(rank, 4)
    assert whole(rank) == [3, 4]
    assert back(rank).step == 4
    assert rank.memory.ledger.lost == 0


@pytest.mark.parametrize("damage", [flip, lambda slot: slot.discard()])
def test_the_one_before_is_taken_where_the_newest_is_damaged(rank, damage):
    committed(rank, 4)
    damage(rank.newest)
    state = back(rank)
    assert state.step == 3
    assert rank.memory.ledger.lost == 1
    # The one that is good is not written to.
    state.step += 1
    with torch.no_grad():
        state.layer.weight.fill_(4)
    state.commit()
    rank.settle()
    assert whole(rank) == [3, 4]
    assert back(rank).step == 4
    assert rank.memory.ledger.lost == 1


def test_a_run_begins_again_where_both_are_damaged(rank):
    committed(rank, 4)
    for slot in filter(lambda each: each.generation, rank.seen().slots):
        flip(slot)
    assert back(rank).step == 0
    assert rank.memory.ledger.lost == 4


def test_a_commit_that_was_interrupted_is_none(rank):
    state = committed(rank, 2)

    class Dies:
        def begin(self, blocks, tensors, had):
            blocks[0].zero_()
            raise KeyboardInterrupt

    rank.training.generations.copies = Dies()
    state.step += 1
    with pytest.raises(KeyboardInterrupt):
        state.commit()
    assert back(rank).step == 2
    assert rank.memory.ledger.lost == 1  # the step was done


def test_lives_are_counted(rank):
    for life in range(1, 4):
        back(rank)
        assert rank.memory.ledger.lives == life


def test_a_commit_waits_for_the_one_before_and_nothing_else_does(
    rank, monkeypatch
):
    may_seal, seal = threading.Event(), Slot.seal

    def held(slot, values):
        may_seal.wait()
        seal(slot, values)

    monkeypatch.setattr(Slot, "seal", held)
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    state = rank.state(layer=layer, optimizer=optimizer)
    state.commit()
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert rank.newest.generation == 0
    next_one = threading.Thread(target=state.commit)
    next_one.start()
    next_one.join(0.1)
    assert next_one.is_alive()
    assert rank.memory.ledger.reached == 1
    may_seal.set()
    next_one.join()
    rank.settle()
    assert rank.newest.generation == rank.memory.ledger.reached == 2


@pytest.mark.parametrize("phase", chaos.PHASES)
def test_chaos_comes_in_each_phase_and_once(rank, monkeypatch, phase):
    monkeypatch.setenv(chaos.VARIABLE, f"error:0:2:{phase}")

    def made():
        torch.manual_seed(0)
        layers = [torch.nn.Linear(4, 4), torch.nn.ReLU(inplace=True)] * 2
        model = torch.nn.Sequential(*layers)
        optimizer = torch.optim.AdamW(model.parameters())
        return rank.state(model=model, optimizer=optimizer, step=0)

    def train(state):
        while state.step < 4:
            state.model(torch.ones(2, 4)).sum().backward()
            state.optimizer.step()
            state.optimizer.zero_grad()
            state.step += 1
            state.commit()

    state = made()
    with pytest.raises(RuntimeError, match="chaos: an error"):
        train(state)
    assert state.step == (3 if phase == "commit" else 2)
    rank.settle()  # as a process does that ends by an error
    state = made()
    assert state.step == 2
    train(state)
    assert state.step == 4
    assert rank.memory.ledger.lost == (phase == "commit")


@pytest.mark.parametrize("kind", ["flip", "tear"])
def test_chaos_damages_the_newest_generation_alone(rank, monkeypatch, kind):
    state = committed(rank, 3)
    died = []
    monkeypatch.setattr(_arming, "_kill", died.append)
    _arming._FAIL[kind](vars(state)["_training"])
    assert len(died) == 1
    assert back(rank).step == 2


class Alone:
    """A group of one rank, which is what is left of two."""

    rank, world = 0, 1

    def gather(self, numbers):
        return [numbers]

    def meet(self):
        pass


def test_what_a_lost_rank_had_done_is_lost_once():
    memories = [Memory(Memory.create(number)) for number in range(2)]
    memories[1].ledger.reached = 5
    for _ in range(2):
        seen = _keeper.Memories(memories[0], memories)
        assert Generations(seen, Alone()).agree() is None
        assert memories[0].ledger.lost == 5


def test_all_parts_are_needed_where_there_were_more_ranks():
    memories = [Memory(Memory.create(number)) for number in range(2)]
    seen = _keeper.Memories(memories[0], memories)
    for rank, memory in enumerate(memories):
        for slot, number in zip(memory.slots, (3, 4), strict=False):
            snapshot = Snapshot({"rank": {"is": rank}}, rank, 2)
            slot.begin(number, number, snapshot.index, [])
            slot.seal()
    found = Generations(seen, Alone()).agree()
    assert (found.number, found.own.rank) == (4, 0)
    assert [image.tree["rank"]["is"] for image in found.images] == [0, 1]
    memories[1].slots[1].discard()
    assert Generations(seen, Alone()).agree().number == 3
    memories[1].slots[0].discard()
    assert Generations(seen, Alone()).agree() is None
