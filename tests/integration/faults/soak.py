"""Random ops of several threads at once, each beside the same on the CPU.

A thread has tensors of its own and reads some that all share. After any op the
bits have to be those of the CPU; what dies is left to the garbage collector
now and then, some work runs on streams, under autograd, through native
aliases. All of it follows from the seed, but for how the threads interleave.
"""

import contextlib
import gc
import os
import random
import threading
import time

import torch
import torch_chameleon
from support import same_bits
from torch_chameleon import _C

COLUMNS = 64
MAX_ROWS = 512  # 128 KiB
KEPT = 10  # tensors of a thread


class Pair:
    """A tensor and what it has to hold."""

    def __init__(self, ours, native):
        self.ours, self.native = ours, native

    def apply(self, function, *others):
        return Pair(
            function(self.ours, *(other.ours for other in others)),
            function(self.native, *(other.native for other in others)),
        )

    def check(self):
        assert same_bits(self.ours, self.native)


def make(random_, rows=None):
    rows = rows or random_.randrange(1, MAX_ROWS)
    draws = torch.Generator().manual_seed(random_.randrange(1 << 30))
    native = torch.randn(rows, COLUMNS, generator=draws)
    return Pair(native.to("chameleon"), native.clone())


class Walker(threading.Thread):
    """One thread; `error` is what ended it early."""

    def __init__(self, seed, shared, ops, deadline):
        super().__init__(name=f"walker {seed}", daemon=True)
        self.random = random.Random(seed)
        self.shared = shared
        self.limit, self.deadline = ops, deadline
        self.ops = 0
        self.error = None
        self.pairs = []

    def run(self):
        try:
            torch.set_num_threads(1)
            streams = [torch.chameleon.default_stream()]
            streams.append(torch.chameleon.Stream())
            while self.ops < self.limit and time.monotonic() < self.deadline:
                stream = self.random.choice(streams)
                with torch.chameleon.stream(stream):
                    for _ in range(self.random.randrange(1, 20)):
                        self.one()
                stream.synchronize()
            for pair in self.pairs:
                pair.check()
        except BaseException as error:
            self.error = error
        finally:
            self.pairs.clear()

    def one(self):
        while len(self.pairs) < 3:
            self.pairs.append(make(self.random))
        action = self.random.choice(ACTIONS)
        action(self, self.random.choice(self.pairs))
        self.ops += 1
        if len(self.pairs) > KEPT:
            self.pairs.pop(self.random.randrange(len(self.pairs)))


def map_(walker, pair):
    function = walker.random.choice([torch.tanh, torch.relu, torch.neg])
    walker.pairs.append(pair.apply(function))


def in_place(walker, pair):
    pair.apply(lambda x: x.mul_(0.5).add_(1))


def of_a_view(walker, pair):
    rows = pair.native.shape[0]
    first = walker.random.randrange(rows)
    pair.apply(lambda x: x[first:, ::3].clamp_(-1, 1))


def with_shared(walker, pair):
    other = walker.random.choice(walker.shared)
    walker.pairs.append(pair.apply(lambda x, w: torch.tanh(x @ w), other))


def joined(walker, pair):
    half = pair.native.shape[0] // 2
    joined = pair.apply(lambda x: torch.cat([x[half:], x[:half]]))
    walker.pairs.append(joined)


def list_op(walker, pair):
    def halve(*tensors):
        torch._foreach_mul_(list(tensors), 0.5)
        torch._foreach_add_(list(tensors), 0.25)

    others = [p for p in walker.pairs if p is not pair]
    pair.apply(halve, *others)


def sorted_(walker, pair):
    walker.pairs.append(pair.apply(lambda x: x.sort(dim=0).values))


def gradients(walker, pair):
    def differentiate(x, w):
        x = x.detach().requires_grad_()
        torch.tanh(x @ w).square().sum().backward()
        return x.grad

    other = walker.random.choice(walker.shared)
    walker.pairs.append(pair.apply(differentiate, other))


def compare(walker, pair):
    pair.check()


def from_the_host(walker, pair):
    pair.apply(lambda x: x.copy_(torch.ones(COLUMNS) / 3))


def through_native(walker, pair):
    with torch_chameleon.resident(pair.ours) as (alias,):
        assert same_bits(alias, pair.native)
        alias[0].fill_(2.5)
    pair.native[0].fill_(2.5)


def shared_through_native(walker, pair):
    other = walker.random.choice(walker.shared)
    with torch_chameleon.resident(other.ours, pair.ours) as (alias, _):
        assert same_bits(alias, other.native)


def evict(walker, pair):
    with contextlib.suppress(ValueError):  # another thread's list op has it
        _C.evict(pair.ours)


def new(walker, pair):
    walker.pairs.append(make(walker.random))


def garbage(walker, pair):
    circle = [pair.apply(torch.clone)]
    circle.append(circle)  # until the collector comes, on any thread
    chance = walker.random.random()
    if chance < 0.02:
        gc.collect()  # the oldest are hardly ever looked at by themselves
    elif chance < 0.1:
        gc.collect(0)


def resized(walker, pair):
    copy = pair.apply(torch.clone)
    copy.ours.untyped_storage().resize_(0)
    rows = walker.random.randrange(1, MAX_ROWS)
    walker.pairs.append(
        copy.apply(lambda x: x.resize_(rows, COLUMNS).fill_(rows))
    )


ACTIONS = [
    map_,
    in_place,
    of_a_view,
    with_shared,
    joined,
    list_op,
    sorted_,
    gradients,
    compare,
    from_the_host,
    through_native,
    shared_through_native,
    evict,
    new,
    garbage,
    resized,
]
# What is resident() counts as written, so to the order checker it may not be
# read by others meanwhile.
if "CHAMELEON_TEST_ADVERSARY" in os.environ:
    ACTIONS.remove(shared_through_native)


def soak(seed, threads, ops=1 << 60, seconds=120.0, beside=lambda: None):
    """Runs the threads; returns how many ops they did.

    `beside` is called again and again on this thread meanwhile.
    """
    random_ = random.Random(seed)
    shared = [make(random_, COLUMNS) for _ in range(6)]
    deadline = time.monotonic() + seconds
    walkers = [
        Walker(seed * 1000 + i, shared, ops, deadline) for i in range(threads)
    ]
    for walker in walkers:
        walker.start()
    try:
        for walker in walkers:
            while walker.is_alive() and time.monotonic() < deadline + 60:
                beside()
                walker.join(0.01)
    except BaseException:
        for walker in walkers:
            walker.limit = 0
        for walker in walkers:
            walker.join(60)
        raise
    hung = [walker.name for walker in walkers if walker.is_alive()]
    assert not hung, f"seed {seed}: these threads hang: {hung}"
    for walker in walkers:
        if walker.error is not None:
            raise AssertionError(f"seed {seed}") from walker.error
    for pair in shared:
        pair.check()
    return sum(walker.ops for walker in walkers)
