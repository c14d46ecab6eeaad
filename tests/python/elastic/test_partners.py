"""A machine's memory is gone, and its ranks' states are not."""

import logging
import os
import threading
import time

import pytest
from partner_ranks import LIMIT_S, Several, linked, value
from torch_chameleon.elastic._image import Image
from torch_chameleon.elastic._memory import Memory
from torch_chameleon.elastic._partner import partners
from torch_chameleon.elastic._partner.holdings import Holding, Holdings
from torch_chameleon.elastic._partner.link import Link
from torch_chameleon.elastic._partner.placement import (
    partner_of,
    partnered,
    why_not,
)
from torch_chameleon.elastic._slot import Slot


@pytest.fixture
def several():
    made = []

    def make(world):
        made.append(Several(world))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("machines", [2, 3, 4, 5])
def test_a_partner_is_on_another_machine(ranks, machines):
    world = ranks * machines
    places = [rank // ranks for rank in range(world)]
    partners = [partner_of(rank, world) for rank in range(world)]
    assert sorted(partners) == list(range(world))
    for rank, partner in enumerate(partners):
        assert places[rank] != places[partner]
        assert partnered(partner, world) == rank
    assert why_not(places) == ""


@pytest.mark.parametrize(
    ("machines", "sentence"),
    [
        ([0], "all ranks (there are 1) are on one machine"),
        ([0, 0, 0, 0], "all ranks (there are 4) are on one machine"),
        ([0, 0, 0, 1], "rank 0 and its partner, rank 2, are on one machine"),
    ],
)
def test_what_has_no_partners_says_so(machines, sentence):
    assert sentence in why_not(machines)
    assert (why_not(machines, may_be_one=True) == "") == (len(machines) > 1)


class Said:
    """A group of which it is known what all say."""

    rank = 0

    def __init__(self, *numbers):
        self.numbers, self.world = numbers, len(numbers)

    def gather(self, numbers):
        assert numbers == self.numbers[0]
        return self.numbers


def test_what_is_wrong_is_said_by_the_state(monkeypatch):
    monkeypatch.delenv("CHAMELEON_TEST_ONE_MACHINE", raising=False)
    monkeypatch.setenv("GROUP_RANK", "0")
    memory = Memory(Memory.create(0))
    for text, said, sentence in (
        ("2", [], "'2' must be 0 or 1"),
        ("1", [[1, 0, 0], [1, 0, 0]], "needs several"),
        ("1", [[1, 0, 0], [0, 1, 0]], "is 1 on rank 0 and not on rank 1"),
    ):
        monkeypatch.setenv("CHAMELEON_PARTNER", text)
        with pytest.raises(ValueError, match=sentence):
            partners.from_environment(Said(*said), memory)
    monkeypatch.setenv("CHAMELEON_PARTNER", "0")
    said = Said([0, 0, 0], [0, 1, 0])
    assert partners.from_environment(said, memory) is None


def test_who_is_left_alone_says_so_and_goes_on(monkeypatch, caplog):
    monkeypatch.setenv("CHAMELEON_PARTNER", "1")
    monkeypatch.setenv("GROUP_RANK", "0")
    memory = Memory(Memory.create(0))
    memory.ledger.back(3, 3, 2)
    with caplog.at_level(logging.WARNING):
        assert partners.from_environment(Said([1, 0, 1]), memory) is not None
    (said,) = caplog.messages
    assert said.startswith("chameleon: no copies go to partners: all ranks")


def test_who_waits_for_others_is_not_wrong(monkeypatch):
    """Where a launcher may begin with one machine."""
    monkeypatch.setenv("CHAMELEON_PARTNER", "1")
    monkeypatch.setenv("CHAMELEON_KEEPER", "1:2")
    memory = Memory(Memory.create(0))
    assert partners.from_environment(Said([1, 0, 0]), memory) is not None


@pytest.mark.parametrize(
    ("world", "lost"), [(2, [1]), (4, [0, 1]), (4, [2, 3])]
)
def test_a_machine_is_lost(several, world, lost):
    ranks = several(world)
    assert ranks.come_back() is None
    for _ in range(3):
        ranks.commit()
    ranks.lose(*lost)
    assert ranks.come_back() == 3
    assert ranks.lost == [0] * world
    assert [each.ledger.fetches for each in ranks.memories] == [1] * world
    ranks.commit()
    # And the other one.
    ranks.lose(*set(range(world)) - set(lost))
    assert ranks.come_back() == 4


def test_nothing_moves_where_nothing_is_lost(several):
    ranks = several(2)
    ranks.come_back()
    ranks.commit()
    assert ranks.come_back() == 1
    assert [each.ledger.fetches for each in ranks.memories] == [0, 0]


def test_both_machines_are_lost(several):
    ranks = several(2)
    ranks.come_back()
    ranks.commit()
    ranks.lose(0, 1)
    assert ranks.come_back() is None


def test_ranks_may_have_other_numbers(several):
    """An agent gives them out anew when a machine takes another one's place."""
    ranks = several(4)
    ranks.come_back()
    for _ in range(2):
        ranks.commit()
    ranks.lose(0, 1)
    ranks.order(2, 3, 0, 1)
    assert ranks.come_back() == 2
    for memory in ranks.memories:  # no slot has another one's
        assert [x.generation for x in memory.slots].count(2) == 1
    ranks.commit()
    assert ranks.come_back() == 3


@pytest.mark.parametrize("at", [0, -1])
def test_a_torn_copy_is_not_used(several, at):
    ranks = several(2)
    ranks.come_back()
    for _ in range(3):
        ranks.commit()
    assert ranks.copied(0) == [2, 3]
    newest = max(
        ranks.memories[0].partner_slots, key=lambda each: each.generation
    )
    if at:
        newest.discard()  # it was being written
    else:
        newest.body[100] ^= 1
    ranks.lose(1)
    assert ranks.come_back() == 2
    assert ranks.lost == [1, 1]


def test_generations_are_left_out_while_one_is_on_its_way(several):
    ranks = several(2)
    ranks.come_back()
    ranks.commit()
    for each in ranks.links:
        each.may_go.clear()
    began = time.monotonic()
    for _ in range(6):
        ranks.commit(copies=False)
    assert time.monotonic() - began < LIMIT_S / 2  # nobody waited
    assert ranks.copied(0) == ranks.copied(1) == [1]
    assert ranks.held(0) <= 4
    for each in ranks.links:
        each.may_go.set()
    for each in ranks.partners:
        each.settle()
    assert ranks.copied(0) == ranks.copied(1) == [1, 2]
    ranks.commit()
    assert ranks.copied(0) == ranks.copied(1) == [2, 8]
    ranks.commit()
    assert ranks.held(0) <= 3


@pytest.mark.parametrize("lost", [0, 1])
def test_a_machine_is_lost_while_one_is_on_its_way(several, lost):
    """All still have the one before, however many came after it."""
    ranks = several(2)
    ranks.come_back()
    for _ in range(2):
        ranks.commit()
    for each in ranks.links:
        each.may_go.clear()
    for _ in range(5):
        ranks.commit(copies=False)
    ranks.lose(lost)
    before, links = ranks.memories, ranks.links
    assert ranks.come_back() == 2
    assert max(ranks.lost) == 5
    for each in links:  # nobody listens to these any more
        each.may_go.set()
    del before


def test_the_one_that_partners_have_is_kept_after_a_return_in_place(several):
    ranks = several(2)
    ranks.come_back()
    ranks.commit()
    for each in ranks.links:
        each.may_go.clear()
    for _ in range(3):
        ranks.commit(copies=False)
    links = ranks.links
    assert ranks.come_back() == 4
    for each in ranks.links:
        each.may_go.clear()
    for _ in range(3):
        ranks.commit(copies=False)
    ranks.lose(1)
    assert ranks.come_back() == 1
    assert max(ranks.lost) == 6
    for each in links:
        each.may_go.set()


def test_a_rank_whose_network_fails_goes_on(several):
    ranks = several(2)
    ranks.come_back()
    ranks.commit()

    def fail(sent=None, received=None):
        raise RuntimeError("connection closed")

    ranks.links[1].move = fail
    ranks.links[0].move = fail
    for _ in range(4):
        ranks.commit()
    assert ranks.copied(0) == ranks.copied(1) == [1]
    assert ranks.held(0) <= 3
    ranks.lose(1)
    assert ranks.come_back() == 1
    assert max(ranks.lost) == 4


@pytest.fixture
def slots():
    files = [os.memfd_create("test") for _ in range(2)]
    yield [Slot(file) for file in files]
    for each in files:
        os.close(each)


def filled(slot, size):
    (block,), _ = slot.begin(3, 30, b"index", [size], life=7)
    block.copy_(value(0, 1).repeat(-(-size // 300))[:size])
    slot.seal()


@pytest.mark.parametrize("size", [0, 1, 9_000_000])
def test_a_slot_is_as_the_other_one_afterwards(slots, size):
    ours, theirs = slots
    filled(ours, size)
    sender, receiver = map(Link, linked(2))
    thread = threading.Thread(target=sender.move, args=((ours, 1),))
    thread.start()
    receiver.move(received=(theirs, 0))
    thread.join(LIMIT_S)
    assert (theirs.generation, theirs.steps, theirs.life) == (3, 30, 7)
    index, (block,) = theirs.read()
    assert index == b"index"
    assert block.equal(ours.read()[1][0])


class GoneError(Exception):
    """In the place of a process's end."""


class Dying:
    """A group whose process dies after so many pieces."""

    def __init__(self, group, pieces):
        self._group, self._left = group, pieces

    def send(self, tensors, rank, tag):
        if not self._left:
            self._group = None  # its connections are closed
            raise GoneError
        self._left -= 1
        return self._group.send(tensors, rank, tag)

    def recv(self, tensors, rank, tag):
        return self._group.recv(tensors, rank, tag)


@pytest.mark.parametrize("pieces", [0, 1, 2])
def test_a_sender_that_dies_in_the_middle_leaves_nothing(slots, pieces):
    ours, theirs = slots
    filled(ours, 9_000_000)
    filled(theirs, 5)
    groups = linked(2)
    receiver = Link(groups.pop())
    sender = Link(Dying(groups.pop(), pieces))

    def send():
        with pytest.raises(GoneError):
            sender.move((ours, 1))

    thread = threading.Thread(target=send)
    thread.start()
    with pytest.raises(RuntimeError):
        receiver.move(received=(theirs, 0))
    thread.join(LIMIT_S)
    if pieces:
        assert theirs.read() is None
        assert Slot(theirs._descriptor).generation == 0
    else:
        assert theirs.generation == 3  # nothing had come yet


def test_a_receiver_that_dies_is_an_error(slots):
    ours, _ = slots
    filled(ours, 9_000_000)
    sender, receiver = linked(2)
    threading.Timer(0.05, lambda gone: gone.clear(), [[receiver]]).start()
    del receiver
    began = time.monotonic()
    with pytest.raises(RuntimeError):
        Link(sender).move((ours, 1))
    assert time.monotonic() - began < LIMIT_S / 2


def test_who_ends_does_not_send_on(slots):
    ours, _ = slots
    filled(ours, 9_000_000)
    groups = linked(2)
    link = Link(groups[0])
    link._is_over.set()
    with pytest.raises(RuntimeError, match="this process ends"):
        link.move((ours, 1))


def has(number, rank, life=1, copy=0, world=2):
    return Holding(number, life, rank, world, copy)


def test_a_life_that_nobody_went_on_from_is_no_part_of_another_one():
    """A machine that was away comes back with what it had."""
    stale = [has(9, 0, life=1), has(8, 1, life=1, copy=1)]
    fresh = [has(9, 1, life=2), has(7, 1, life=2)]
    assert Holdings([stale, fresh]).newest is None
    stale.append(has(7, 0, life=2))
    found = Holdings([stale, fresh])
    assert found.newest == (7, 2)
    assert found.moves(found.newest) == []
    assert found.copied(found.newest) is None


def test_who_has_most_is_not_asked_most():
    everything = [has(1, rank, world=4) for rank in range(4)]
    found = Holdings([everything, everything, [], []])
    assert found.moves(found.newest) == [(0, 2), (1, 3)]


def test_those_of_other_worlds_count_if_all_are_there():
    """Of three machines one is gone."""
    two = [has(4, 0, world=3)], [has(4, 1, world=3), has(5, 1, world=3)]
    assert Holdings(two).newest is None
    two[0].append(has(4, 2, copy=1, world=3))
    found = Holdings(two)
    assert found.newest == (4, 1)
    assert found.moves(found.newest) == []
    assert found.givers(found.newest) == [0, 1, 0]
    assert not found.is_copied(found.newest)
    assert not found.is_needed_whole(found.newest)
    # Who is new gets what it begins with.
    found = Holdings([*two, [], []])
    assert found.moves(found.newest) == [(0, 2), (0, 3)]
    assert found.image_for(found.newest, 3) == 0


def test_a_copied_generation_is_in_two_places():
    both = [
        [has(4, rank), has(4, 1 - rank, copy=1), has(5, rank)]
        for rank in range(2)
    ]
    found = Holdings(both)
    assert found.copied(found.newest) == (4, 1)
    assert found.is_copied((4, 1))
    assert not Holdings([both[0], both[1][1:]]).is_copied((4, 1))
    assert not Holdings([both[0], both[1][:1]]).is_copied((4, 1))


@pytest.fixture
def sharded(monkeypatch):
    monkeypatch.setattr(Image, "is_sharded", property(lambda _: True))


@pytest.mark.parametrize(
    ("world", "lost"), [(2, [1]), (2, [0]), (3, [0]), (3, [1]), (4, [0, 1])]
)
def test_a_machine_is_lost_for_good(several, sharded, world, lost):
    """Those that are left see all images, and go on."""
    ranks = several(world)
    ranks.come_back()
    for _ in range(3):
        ranks.commit()
    ranks.leave(*lost)
    assert ranks.come_back() == 3
    assert ranks.seen == [list(range(world))] * ranks.world
    assert ranks.lost == [0] * ranks.world
    assert [each.ledger.fetches for each in ranks.memories] == [1] * ranks.world
    assert ranks.commit() == 4
    assert ranks.come_back() == 4  # in place
    assert ranks.seen == [[rank] for rank in range(ranks.world)]


def test_whoever_has_all_of_it_gets_nothing(several):
    """Replicas: as a model in DDP."""
    ranks = several(3)
    ranks.come_back()
    ranks.commit()
    ranks.leave(1)
    assert ranks.come_back() == 1
    assert ranks.seen == [[], []]
    assert [each.ledger.fetches for each in ranks.memories] == [0, 0]


def test_nothing_is_overwritten_until_those_that_are_left_have_it(
    several, sharded
):
    ranks = several(3)
    ranks.come_back()
    ranks.commit()
    ranks.leave(2)
    for _ in range(3):  # they fail again and again
        assert ranks.come_back() == 1
    ranks.commit(copies=False)
    assert ranks.come_back() == 2


def test_one_that_is_left_has_no_partner(several, sharded):
    ranks = several(2)
    ranks.come_back()
    for _ in range(2):
        ranks.commit()
    ranks.leave(0)
    assert ranks.come_back(are_apart=False) == 2
    assert ranks.seen == [[0, 1]]
    for _ in range(4):
        ranks.commit()
    assert ranks.memories[0].ledger.figures.partner_steps == 0
    assert ranks.held(0) <= 3


def test_a_machine_comes_later(several, sharded):
    ranks = several(2)
    ranks.come_back()
    ranks.commit()
    ranks.leave(1)
    assert ranks.come_back(are_apart=False) == 1
    ranks.commit()
    ranks.join(1)
    assert ranks.come_back() == 2
    assert ranks.seen == [[0], [0]]
    ranks.commit()
    ranks.lose(1)
    assert ranks.come_back() == 3


def test_what_is_left_of_two_machines_of_three_is_nothing(several):
    ranks = several(3)
    ranks.come_back()
    ranks.commit()
    ranks.leave(0, 1)
    assert ranks.come_back(are_apart=False) is None


def test_what_partners_have_is_a_figure(several):
    ranks = several(2)
    ranks.come_back()
    figures = ranks.memories[0].ledger.figures
    assert (figures.partner_steps, figures.partner_s) == (0, 0)
    for _ in range(3):
        ranks.commit()
    figures = ranks.memories[0].ledger.figures
    assert figures.partner_steps == 2  # of the last one it is not known yet
    assert figures.partner_s > 0
    ranks.come_back()
    assert ranks.memories[0].ledger.figures.partner_steps == 3
    ranks.lose(1)
    ranks.come_back()
    assert ranks.memories[0].ledger.figures.partner_steps == 0
