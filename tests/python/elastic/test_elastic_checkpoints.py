"""Generations on disk: when they are written, and who reads them."""

import logging
import os
import threading

import pytest
import torch
from returning_rank import rank_fixture  # noqa: F401
from torch_chameleon import elastic
from torch_chameleon.elastic import _checkpoints, _keeper
from torch_chameleon.elastic._checkpoints import Checkpoints
from torch_chameleon.elastic._generations import Generations
from torch_chameleon.elastic._memory import Memory
from torch_chameleon.elastic._snapshot import Snapshot


@pytest.fixture(name="folder")
def folder_fixture(tmp_path, monkeypatch):
    folder = tmp_path / "saved"
    monkeypatch.setenv("CHAMELEON_CHECKPOINT", str(folder))
    monkeypatch.setenv("CHAMELEON_CHECKPOINT_STEPS", "2")
    return folder


def made(rank):
    layer = torch.nn.Linear(16, 16)
    return rank.state(layer=layer, step=0)


def train(rank, state, steps):
    while state.step < steps:
        with torch.no_grad():
            state.layer.weight.fill_(state.step + 1)
        state.step += 1
        state.commit()
    rank.training.generations.wait()
    written(rank)


def written(rank):
    writing = rank.training.generations._checkpoints._writing
    if writing is not None:
        writing.result()


def forget(rank):
    for slot in rank.seen().slots:
        slot.discard()


def in_use(rank):
    """How many slots hold memory."""
    files = [slot._descriptor for slot in rank.memory.slots]
    return sum(os.fstat(each).st_size > 4096 for each in files)


def steps(folder):
    return sorted(each.name for each in folder.iterdir())


def test_the_last_two_are_there(rank, folder):
    train(rank, made(rank), 7)
    assert steps(folder) == ["step-00000004", "step-00000006"]
    assert [x.name for x in (folder / "step-00000006").iterdir()] == ["0-of-1"]
    figures = rank.memory.ledger.figures
    assert figures.checkpoint_steps == 6
    assert 0 < figures.checkpoint_s < 60


def test_memory_goes_before_disk(rank, folder):
    train(rank, made(rank), 7)
    assert made(rank).step == 7
    assert rank.memory.ledger.figures.reading_s == 0


def test_disk_is_the_last_resort(rank, folder):
    train(rank, made(rank), 7)
    forget(rank)
    state = made(rank)
    assert state.step == 6
    assert (state.layer.weight == 6).all()
    assert rank.memory.ledger.lost == 1
    assert rank.memory.ledger.figures.reading_s > 0
    # It goes on, in memory and on disk.
    train(rank, state, 9)
    assert steps(folder) == ["step-00000006", "step-00000008"]
    assert made(rank).step == 9


def test_explain_knows_of_it(rank, folder):
    train(rank, made(rank), 3)
    outlook = elastic.explain()
    assert [x.name for x in outlook.options] == [
        "in place", "from the checkpoint"
    ]  # fmt: skip
    assert outlook.best.name == "in place"
    forget(rank)
    outlook = elastic.explain()
    assert outlook.best.name == "from the checkpoint"
    assert "no generation is whole" in str(outlook)


def test_one_that_was_interrupted_is_none(rank, folder):
    train(rank, made(rank), 4)
    newest = folder / "step-00000004"
    (newest / "0-of-1").rename(newest / "part-0-of-1")
    forget(rank)
    state = made(rank)
    assert state.step == 2
    train(rank, state, 4)
    assert [each.name for each in newest.iterdir()] == ["0-of-1"]


def test_a_full_disk_does_not_end_a_run(rank, folder, caplog):
    folder.write_text("no folder")
    with caplog.at_level(logging.WARNING):
        train(rank, made(rank), 3)
    assert "no checkpoint of step 2" in caplog.text
    assert rank.memory.ledger.figures.checkpoint_steps == 0


def test_what_is_written_stays_as_it_is_meanwhile(rank, folder, monkeypatch):
    state = made(rank)
    train(rank, state, 1)
    gate = threading.Event()
    checkpoints = rank.training.generations._checkpoints
    write = checkpoints._write

    def late(*arguments):
        assert gate.wait(20)
        write(*arguments)

    monkeypatch.setattr(checkpoints, "_write", late)
    for _ in range(2):
        state.step += 1
        with torch.no_grad():
            state.layer.weight.fill_(state.step)
        state.commit()
    source = checkpoints.source
    assert source.steps == 2
    state.step = 4
    state.commit()
    rank.settle()
    assert source.steps == 2
    assert in_use(rank) == 3
    gate.set()
    state.step = 5
    state.commit()  # 4 is to be written: it waits for 2
    written(rank)
    state.step = 6
    state.commit()
    rank.settle()
    assert in_use(rank) == 2
    assert steps(folder) == ["step-00000002", "step-00000004"]
    forget(rank)
    assert made(rank).step == 4


@pytest.mark.parametrize("text", ["0", "x", "-1", "1.5"])
def test_no_number_of_steps(rank, folder, monkeypatch, text):
    monkeypatch.setenv("CHAMELEON_CHECKPOINT_STEPS", text)
    with pytest.raises(ValueError, match="must be a number of steps"):
        made(rank)


class Group:
    def __init__(self, rank, world):
        self.rank, self.world = rank, world

    def gather(self, numbers):
        return [numbers] * self.world


def test_others_read_all_of_it(tmp_path):
    memories = [Memory(Memory.create(number)) for number in range(2)]

    def checkpoints(rank, world):
        group = Group(rank, world)
        ledger = memories[rank].ledger
        return Checkpoints(tmp_path, 1, ledger, group)

    for rank, memory in enumerate(memories):
        slot, writer = memory.slots[0], checkpoints(rank, 2)
        assert writer.newest() is None  # the other's is not there yet
        tensor = torch.full((3,), float(rank))
        snapshot = Snapshot({"it": {"is": tensor}}, rank, 2)
        (block,), _ = slot.begin(5, 7, snapshot.index, [12])
        block.copy_(tensor.view(torch.uint8))
        slot.seal()
        assert writer.is_due(7)
        writer.write(slot)
        writer._writing.result()
        assert not writer.is_due(7)
    for rank in range(2):
        found = checkpoints(rank, 2).newest()
        assert found[:2] == (0, 7)
        assert [each.rank for each in found.images] == [rank]
    found = checkpoints(0, 1).newest()
    assert found.own.rank == 0
    assert [each.values(0).tolist() for each in found.images] == [
        [0, 0, 0], [1, 1, 1]
    ]  # fmt: skip


def test_a_damaged_generation_is_not_written(tmp_path, caplog):
    memory = Memory(Memory.create(0))
    checkpoints = Checkpoints(tmp_path, 1, memory.ledger, Group(0, 1))
    slot = memory.slots[0]
    (block,), _ = slot.begin(1, 1, b"", [8])
    slot.seal()
    block[3] ^= 1
    checkpoints.write(slot)
    checkpoints._writing.result()
    assert "what is in memory is damaged" in caplog.text
    assert checkpoints.newest() is None


def test_nobody_asked_for_any(monkeypatch):
    monkeypatch.delenv("CHAMELEON_CHECKPOINT", raising=False)
    assert _checkpoints.from_environment(None, None) is None


def test_all_ranks_say_as_much_however_many_generations_they_have():
    said = []
    for count in range(4):
        memory = Memory(Memory.create(0))
        for number, slot in enumerate(memory.slots[:count], 1):
            snapshot = Snapshot({}, 0, 1)
            slot.begin(number, number, snapshot.index, [])
            slot.seal()

        class Listens(Group):
            def gather(self, numbers):
                said.append(len(numbers))
                return [numbers]

        memories = _keeper.Memories(memory, [memory])
        found = Generations(memories, Listens(0, 1)).agree()
        assert (found.number if found else 0) == count
    assert said == [len(memory.slots) + 2] * 4
