"""A machine's memory is gone, and its ranks' states are not."""

import os
import threading
import time

import pytest
from partner_ranks import LIMIT_S, Several, linked, value
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
    for text, said, sentence in (
        ("2", [], "'2' must be 0 or 1"),
        ("1", [[1, 0], [1, 0]], "needs several"),
        ("1", [[1, 0], [0, 1]], "is 1 on rank 0 and not on rank 1"),
    ):
        monkeypatch.setenv("CHAMELEON_PARTNER", text)
        with pytest.raises(ValueError, match=sentence):
            partners.from_environment(Said(*said), None)
    monkeypatch.setenv("CHAMELEON_PARTNER", "0")
    assert partners.from_environment(Said([0, 0], [0, 1]), None) is None


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


def test_those_of_other_worlds_are_left_alone():
    found = Holdings([[has(4, 0, world=3)], [has(4, 1, world=3)]])
    assert found.newest is None
