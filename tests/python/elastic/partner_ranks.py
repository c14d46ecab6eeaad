"""Several ranks as threads of one process, whose links are gloo's own."""

import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as dist
from torch_chameleon.elastic import _keeper
from torch_chameleon.elastic._generations import Generations
from torch_chameleon.elastic._memory import Memory
from torch_chameleon.elastic._partner.link import Link
from torch_chameleon.elastic._partner.partners import Partners
from torch_chameleon.elastic._snapshot import Snapshot

LIMIT_S = 20
BYTES = 300


def linked(world):
    """A process group for each, which meet as processes do."""
    store = dist.HashStore()
    with ThreadPoolExecutor(world) as threads:
        made = threads.map(
            lambda rank: dist.ProcessGroupGloo(
                store, rank, world, timedelta(seconds=LIMIT_S)
            ),
            range(world),
        )
        return list(made)


class Hall:
    """Where the ranks of a life meet."""

    def __init__(self, world):
        self.said = [[]] * world
        self.barrier = threading.Barrier(world, timeout=LIMIT_S)
        self.shown = None


class InHall:
    """A rank's group."""

    def __init__(self, hall, rank):
        self.rank, self.world = rank, len(hall.said)
        self._hall = hall

    def gather(self, numbers):
        self._hall.said[self.rank] = numbers
        self._hall.barrier.wait()
        said = list(self._hall.said)
        self._hall.barrier.wait()
        return said

    def broadcast(self, data, source):
        if source == self.rank:
            self._hall.shown = data
        self._hall.barrier.wait()
        if source != self.rank:
            data.copy_(self._hall.shown)
        self._hall.barrier.wait()

    def meet(self):
        self._hall.barrier.wait()


class Held(Link):
    """One that lets nothing through until it may."""

    def __init__(self, group):
        super().__init__(group)
        self.may_go = threading.Event()
        self.may_go.set()

    def move(self, sent=None, received=None):
        assert self.may_go.wait(LIMIT_S)
        super().move(sent, received)


class Several:
    """All ranks of a training; `memories` outlive their lives."""

    def __init__(self, world):
        self.world = world
        self._files = [Memory.create(rank) for rank in range(world)]
        self._steps = itertools.count(1)
        self.links = []

    def memory(self, rank):
        return Memory([os.dup(each) for each in self._files[rank]])

    def lose(self, *ranks):
        """Their machine is another one now."""
        for rank in ranks:
            self._close(rank)
            self._files[rank] = Memory.create(rank)

    def order(self, *ranks):
        """Who has which number in the next life."""
        self._files = [self._files[rank] for rank in ranks]

    def leave(self, *ranks):
        """Their machine is lost, and nobody comes in its place."""
        self._end()
        for rank in ranks:
            self._close(rank)
        stay = [rank for rank in range(self.world) if rank not in ranks]
        self._files = [self._files[rank] for rank in stay]
        self.world = len(stay)

    def join(self, ranks):
        """So many more are there."""
        self._end()
        self._files += [Memory.create(self.world + x) for x in range(ranks)]
        self.world += ranks

    def come_back(self, are_apart=True):
        """All start again; the steps that are behind them, or None."""
        self._end()
        hall = Hall(self.world)
        self.memories = [self.memory(rank) for rank in range(self.world)]
        self.links = [None]
        if self.world > 1:
            self.links = [Held(group) for group in linked(self.world)]
        groups = [InHall(hall, rank) for rank in range(self.world)]
        self.partners = [
            Partners(*each, are_apart)
            for each in zip(groups, self.memories, self.links, strict=True)
        ]
        self.generations = [
            Generations(
                _keeper.Memories(memory, [memory]), group, None, partners
            )
            for memory, group, partners in zip(
                self.memories, groups, self.partners, strict=True
            )
        ]

        def agree(rank):
            found = self.generations[rank].agree()
            if found is not None:
                wrote = found.own.world
                assert found.own.rank == rank or wrote != self.world
                check(found.own, found.steps)
                self.seen[rank] = [check(x, found.steps) for x in found.images]
            return found

        self.seen = [[]] * self.world  # whose images each has looked at
        found = self._on_all(agree)
        steps = {each and each.steps for each in found}
        assert len(steps) == 1
        self._steps = itertools.count((found[0].steps if found[0] else 0) + 1)
        return steps.pop()

    def commit(self, copies=True):
        """A step of all; waits for partners' copies, or not."""
        steps = next(self._steps)

        def work(rank):
            generations = self.generations[rank]
            self.memories[rank].ledger.reached = steps
            tree = {"model": {"weight": value(rank, steps)}}
            generations.commit(Snapshot(tree, rank, self.world), steps)
            generations.wait()
            if copies and self.world > 1:
                self.partners[rank].settle()

        self._on_all(work)
        return steps

    def copied(self, rank):
        """Steps of the generations that a rank has of another one."""
        slots = self.memories[rank].partner_slots
        return sorted(each.steps for each in slots if each.read())

    def held(self, rank):
        """How many slots of its own hold memory."""
        return sum(len(each.body) > 0 for each in self.memories[rank].slots)

    @property
    def lost(self):
        return [each.ledger.lost for each in self.memories]

    def close(self):
        self._end()
        for rank in range(self.world):
            self._close(rank)

    def _end(self):
        """All processes end; nobody listens to what they were sending."""
        for each in filter(None, self.links):
            each._group = None

    def _close(self, rank):
        for each in self._files[rank]:
            os.close(each)

    def _on_all(self, work):
        with ThreadPoolExecutor(self.world) as threads:
            return list(threads.map(work, range(self.world)))


def check(image, steps):
    """Looks at its values; whose they are."""
    assert torch.equal(image.values(0), value(image.rank, steps))
    return image.rank


def value(rank, steps):
    """What a rank has then."""
    draws = torch.Generator().manual_seed(1000 * rank + steps)
    return torch.randint(256, (BYTES,), dtype=torch.uint8, generator=draws)
