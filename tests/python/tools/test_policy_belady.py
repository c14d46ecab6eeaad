"""Belady's bytes: pencil and paper, and the fewest fetches by search."""

import itertools
import math
import random

import pytest
from belady import belady_bytes
from bound import Step, Storage


def cycle(*ops, sizes=None, create=None, free=None):
    """A step from ops like "a b=": what is read, and = written, ~ unread."""
    storages = {}
    for number, op in enumerate(ops):
        for word in op.split():
            name = word.rstrip("=~")
            one = storages.setdefault(name, Storage((sizes or {}).get(name, 1)))
            one.accesses.append(number)
            one.reads.append("~" not in word)
            one.writes.append(word != name)
    for name, number in (create or {}).items():
        storages[name].created = number
    for name, number in (free or {}).items():
        storages[name].freed = number
    return Step([1] * len(ops), list(storages.values()))


def test_all_fits():
    assert belady_bytes(cycle("a b=", "b c"), 3) == (0, 0)


def test_frozen_pages_in_a_cycle():
    # Of n pages in turn with m frames, n - m of n - 1 uses miss.
    assert belady_bytes(cycle(*"abcd"), 2) == (pytest.approx(4 * 2 / 3), 0)
    assert belady_bytes(cycle(*"abcdef"), 5) == (pytest.approx(6 / 5), 0)


def test_written_pages_go_out_too():
    bytes_in, bytes_out = belady_bytes(cycle("a=", "b=", "c=", "d="), 2)
    assert bytes_in == bytes_out == pytest.approx(4 * 2 / 3)


def test_a_saved_page_is_not_saved_again():
    # b is written once, and evicted before and after the d's second use.
    sizes = {"b": 3, "c": 3}
    assert belady_bytes(cycle("b=", "c", "b", "c", sizes=sizes), 3) == (12, 3)


def test_what_is_overwritten_is_not_fetched():
    step = cycle("a~", "a", "b", sizes={"a": 5, "b": 7})
    assert belady_bytes(step, 7) == (7, 5)


def test_what_dies_moves_only_if_it_must():
    step = cycle("t~", "a", "t", create={"t": 0}, free={"t": 2})
    assert belady_bytes(step, 2) == (0, 0)
    assert belady_bytes(step, 1) == (2, 1)  # a and t in, t out


def test_the_farthest_goes():
    # At c: a is used next, b later, so b goes; it is the larger one.
    step = cycle("a", "b", "c", "a", "b", sizes={"a": 2, "b": 4, "c": 3})
    assert belady_bytes(step, 6) == (7, 0)  # c, and b again


def test_an_op_that_never_fits():
    with pytest.raises(ValueError, match="op 1 alone touches 3"):
        belady_bytes(cycle("a", "a b c"), 2)


# ---- the fewest fetches -----------------------------------------------------


def fewest_fetches(step, frames):
    """Fetches a step of the best schedule that goes on for ever.

    Pages of one size. Between steps some set of pages is resident; the fewest
    fetches from each set to each are edges of a graph, and the answer is its
    cycle with the least mean (Karp).
    """
    names = range(len(step.storages))
    sets = [
        frozenset(chosen)
        for size in range(frames + 1)
        for chosen in itertools.combinations(names, size)
    ]
    edges = {start: turn(step, frames, start) for start in sets}
    count = len(sets)
    best = [dict.fromkeys(sets, 0)]
    for _ in range(count):
        reached = dict.fromkeys(sets, math.inf)
        for start, cost in best[-1].items():
            for end, fetches in edges[start].items():
                reached[end] = min(reached[end], cost + fetches)
        best.append(reached)
    return min(
        max((best[count][s] - best[i][s]) / (count - i) for i in range(count))
        for s in sets
        if best[count][s] < math.inf
    )


def turn(step, frames, start):
    """The fewest fetches of one step, by what is resident at its end."""
    reached = {start: 0}
    for op in range(step.ops):
        used = {
            number: storage.reads[storage.accesses.index(op)]
            for number, storage in enumerate(step.storages)
            if op in storage.accesses
        }
        after = {}
        for resident, cost in reached.items():
            fetches = cost + sum(
                reads
                for number, reads in used.items()
                if number not in resident
            )
            others = resident - used.keys()
            room = frames - len(used)
            for kept in itertools.combinations(others, min(room, len(others))):
                held = used.keys() | set(kept)
                held = frozenset(
                    n for n in held if step.storages[n].freed != op
                )
                after[held] = min(after.get(held, math.inf), fetches)
        reached = after
    return reached


def random_cycle(rng):
    """Pages are read and written, temporaries begin and end."""
    pages, ops = rng.randint(3, 5), rng.randint(4, 7)
    lines = []
    for _ in range(ops):
        used = rng.sample(range(pages), rng.randint(1, 2))
        lines.append([f"{n}=" if rng.random() < 0.3 else f"{n}" for n in used])
    create, free = {}, {}
    if rng.random() < 0.7:
        first, last = sorted(rng.sample(range(ops), 2))
        create["t"], free["t"] = first, last
        lines[first].append("t~")
        lines[last].append("t")
    return cycle(*map(" ".join, lines), create=create, free=free)


@pytest.mark.parametrize("seed", range(40))
def test_as_few_fetches_as_the_best(seed):
    step = random_cycle(random.Random(seed))
    least = int(step.operand_bytes.max())
    for frames in range(least, least + 2):
        bytes_in, _ = belady_bytes(step, frames)
        assert bytes_in == pytest.approx(fewest_fetches(step, frames))
