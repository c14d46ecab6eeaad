"""A generation is whole, or there is none: at any moment, and when damaged."""

import os
import random

import pytest
import torch
from torch_chameleon.elastic._slot import Slot


@pytest.fixture
def file():
    descriptor = os.memfd_create("test")
    yield descriptor
    os.close(descriptor)


def blocks_of(seed, sizes):
    draws = torch.Generator().manual_seed(seed)
    return [
        torch.randint(256, (size,), dtype=torch.uint8, generator=draws)
        for size in sizes
    ]


def write(slot, generation, sizes, index=b"what it is"):
    """Returns what it wrote; the commit is missing."""
    blocks, _ = slot.begin(generation, 10 * generation, index, sizes)
    wrote = blocks_of(generation, sizes)
    for block, values in zip(blocks, wrote, strict=True):
        block.copy_(values)
    return wrote


def assert_has(slot, generation, wrote, index=b"what it is"):
    assert (slot.generation, slot.steps) == (generation, 10 * generation)
    said, blocks = slot.read()
    assert said == index
    assert len(blocks) == len(wrote)
    for block, values in zip(blocks, wrote, strict=True):
        assert torch.equal(block, values)


def test_nothing_is_there_at_first(file):
    slot = Slot(file)
    assert slot.generation == 0
    assert slot.read() is None


def test_another_process_finds_what_was_sealed(file):
    slot = Slot(file)
    wrote = write(slot, 3, [1, 0, 64, 65, 4096])
    other = Slot(file)
    assert other.generation == 0
    assert other.read() is None
    slot.seal()
    assert_has(other, 3, wrote)
    assert_has(Slot(file), 3, wrote)


def test_a_block_begins_where_a_cache_line_does(file):
    blocks, _ = Slot(file).begin(1, 0, b"x", [1, 3, 64, 5])
    assert [block.data_ptr() % 64 for block in blocks] == [0] * 4
    assert [block.numel() for block in blocks] == [1, 3, 64, 5]


def test_the_file_has_the_size_of_the_last_generation(file):
    slot = Slot(file)
    sizes = {}
    for generation, blocks in enumerate(([64], [1 << 20, 7], [64]), 1):
        wrote = write(slot, generation, blocks)
        slot.seal()
        assert_has(Slot(file), generation, wrote)
        sizes[generation] = os.fstat(file).st_size
    assert sizes[1] == sizes[3] < sizes[2] - (1 << 20) + 4096


def test_a_writer_that_dies_leaves_no_generation(file):
    """At whatever moment of the next one."""
    slot = Slot(file)
    write(slot, 1, [100, 100])
    slot.seal()
    slot.begin(2, 20, b"", [100])
    assert Slot(file).read() is None
    slot.seal()
    assert Slot(file).read() is not None


def test_a_flipped_bit_is_found_wherever_it_is(file):
    slot = Slot(file)
    wrote = write(slot, 5, [33, 1, 200])
    slot.seal()
    size = os.fstat(file).st_size
    rows, used = 4096 + 3 * 24, len(b"what it is")
    # In the header's words, the table, the index and the blocks; not in gaps.
    places = [*range(56), *range(4096, rows + used)]
    for block in slot.read()[1]:
        start = block.storage_offset()
        places += range(start, start + block.numel())
    assert max(places) < size
    for place in places:
        for bit in (0, 7):
            was = os.pread(file, 1, place)
            os.pwrite(file, bytes([was[0] ^ 1 << bit]), place)
            assert Slot(file).read() is None, place
            os.pwrite(file, was, place)
    assert_has(Slot(file), 5, wrote)


def test_a_file_that_was_cut_is_no_generation(file):
    slot = Slot(file)
    write(slot, 1, [10_000])
    slot.seal()
    os.ftruncate(file, 8192)
    assert Slot(file).read() is None


@pytest.mark.parametrize("seed", range(3))
def test_random_writes_against_a_model(file, seed):
    """Of what is whole, whatever was written, left, damaged and dropped."""
    draws = random.Random(seed)
    slot, whole = Slot(file), None
    for generation in range(1, 60):
        sizes = [draws.randrange(300) for _ in range(draws.randrange(5))]
        index = draws.randbytes(draws.randrange(200))
        wrote = write(slot, generation, sizes, index)
        whole = None
        if draws.random() < 0.7:
            slot.seal()
            whole = generation, wrote, index
        if draws.random() < 0.2:
            slot.discard()
            whole = None
        if draws.random() < 0.3:
            slot = Slot(file)  # the process came back
        if whole is None:
            assert slot.read() is None, f"seed {seed}"
        else:
            assert_has(slot, *whole)
