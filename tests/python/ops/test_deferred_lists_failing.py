"""List ops that wait for each other: no memory, kernels that fail, threads."""

import threading

import pytest
import torch
import torch_chameleon
from deferred_lists import COUNT, all_same, put_off, tensors
from support import MIB, same_bits
from torch_chameleon import _C, _testing


@pytest.fixture(autouse=True)
def short_of_memory(tight):
    tight(2 * MIB)


# ---- running out of memory -------------------------------------------------


def test_out_of_memory_keeps_what_is_left():
    xs, ys = tensors("chameleon"), tensors("chameleon", 1)
    pins = tensors("chameleon", 2, count=14)
    _C.evict_all(0)
    with torch_chameleon.resident(*pins):
        torch._foreach_mul_(xs, 3.0)
        made = torch._foreach_add(xs, ys)  # 3 of 2 places that are left
        assert _testing.deferred_op_count() == 2
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError) as error:
                xs[0].cpu()
            assert "aten::_foreach_add.List" in str(error.value)
            assert "Nothing is lost" in str(error.value)
        assert _testing.deferred_op_count() == 2
    expected = [x.mul(3.0) for x in tensors("cpu")]
    assert all_same(xs, expected)
    torch._foreach_add_(expected, tensors("cpu", 1))
    assert all_same(made, expected)


@pytest.mark.parametrize("seen", [False, True])
def test_no_room_inside_the_kernel_keeps_all(seen):
    """An op that writes its operands must not fail inside its kernel."""
    if seen:
        ys, expected = put_off(1)
        assert all_same([y.cpu() for y in ys], expected)
    xs, expected = put_off()
    pin = torch.zeros(2 * MIB - (128 << 10), dtype=torch.uint8)
    pin = pin.to("chameleon")  # one operand fits beside it, and nothing else
    with torch_chameleon.resident(pin):
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError, match="Nothing is lost"):
                xs[0].cpu()
    assert _testing.deferred_op_count() == 1
    assert all_same([x.cpu() for x in xs], expected)


def test_an_emptied_storage_needs_no_room():
    """Its op writes others, too: it runs later, on bytes of its own."""
    xs, expected = put_off()
    ys = tensors("chameleon", 1)
    torch._foreach_add_(ys, xs)
    made = torch._foreach_add(xs, ys)
    pins = torch.zeros(2 * MIB, dtype=torch.uint8, device="chameleon")
    with torch_chameleon.resident(pins):
        with pytest.raises(torch.OutOfMemoryError):
            xs[1].cpu()  # and its chunk was begun
        for emptied in (xs[0], xs[1], made[2]):
            emptied.untyped_storage().resize_(0)
            assert emptied.untyped_storage().nbytes() == 0
            assert not _testing.has_deferred_op(emptied)
        assert _testing.deferred_op_count() == 3
    for emptied, value in ((xs[0], 7.0), (made[2], 8.0)):
        emptied.untyped_storage().resize_(emptied.numel() * 4)
        emptied.fill_(value)
    sums = [a + b for a, b in zip(expected, tensors("cpu", 1), strict=True)]
    assert all_same(ys, sums)
    totals = [a + b for a, b in zip(expected, sums, strict=True)]
    assert all_same([*made[:2], *made[3:]], [*totals[:2], *totals[3:]])
    assert all_same(xs[2:], expected[2:])
    assert _testing.deferred_op_count() == 0
    assert same_bits(xs[0], torch.full_like(expected[0], 7.0))
    assert same_bits(made[2], torch.full_like(expected[0], 8.0))


def test_bytes_of_an_emptied_storage_die_with_its_op():
    xs, _ = put_off()
    for x in xs:
        x.untyped_storage().resize_(0)
    assert _testing.deferred_op_count() == 1
    torch.chameleon.synchronize()
    assert torch.chameleon.memory_allocated() == 0


def test_a_higher_limit_helps(tight):
    xs, ys = tensors("chameleon"), tensors("chameleon", 1)
    pins = tensors("chameleon", 2, count=14)
    _C.evict_all(0)
    with torch_chameleon.resident(*pins):
        made = torch._foreach_add(xs, ys)
        with pytest.raises(torch.OutOfMemoryError):
            torch.chameleon.synchronize()
        assert torch_chameleon.swap_stats()["hbm_budget"] == 2 * MIB
        torch.chameleon.empty_cache()
        assert _testing.deferred_op_count() == 1
        tight(3 * MIB)
        torch_chameleon.swap_stats()
        assert _testing.deferred_op_count() == 0
    expected = torch._foreach_add(tensors("cpu"), tensors("cpu", 1))
    assert all_same(made, expected)


def test_fewer_indices_where_a_chunk_finds_no_room():
    """Chunks are of two indices, and pins leave room for one."""
    halves = [x[:32].clone() for x in tensors("chameleon")]  # 32 KiB each
    others = [x[:32].clone() for x in tensors("chameleon", 1)]
    pins = tensors("chameleon", 2, count=15)
    _C.evict_all(0)
    with torch_chameleon.resident(*pins):  # 128 KiB are left
        made = torch._foreach_add(halves, others)
        assert _testing.deferred_op_count() == 1
        torch.chameleon.synchronize()
    expected = torch._foreach_add(tensors("cpu"), tensors("cpu", 1))
    assert all_same(made, [x[:32] for x in expected])


def test_results_past_the_logical_limit():
    """Without logical room an op is refused, and those before it run."""
    with torch_chameleon.config.patch(oversubscription=1.2):
        xs, ys = tensors("chameleon"), tensors("chameleon", 1)
        _C.evict_all(0)
        torch._foreach_mul_(xs, 2.0)
        with pytest.raises(torch.OutOfMemoryError, match="oversubscription"):
            torch._foreach_sqrt(xs)  # 3 MiB of 2.4
        assert _testing.deferred_op_count() == 0
        del ys
    assert all_same(xs, [x.mul(2.0) for x in tensors("cpu")])


# ---- kernels that fail ------------------------------------------------------


def test_a_kernel_in_python_that_raises():
    """The exception is its own, so a warning says what did not take place."""

    def kernel(xs, scalars):
        raise KeyError("mine")

    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("_foreach_add_.ScalarList", kernel, "CPU")
        xs, expected = put_off()
        torch._foreach_add_(xs, [1.0] * COUNT)
        torch._foreach_mul_(xs, 2.0)
        assert _testing.deferred_op_count() == 3
        with (
            pytest.warns(UserWarning, match="after it did not take place"),
            pytest.raises(KeyError, match="mine"),
        ):
            xs[0].cpu()
        assert _testing.deferred_op_count() == 0
    _C.check_invariants(0, 3)
    for x, y in zip(xs, expected, strict=True):
        assert same_bits(x, y) or same_bits(x * 3.0, y)  # its chunk came or not
    torch._foreach_copy_(xs, expected)
    assert all_same(xs, expected)


# ---- threads ---------------------------------------------------------------


def in_thread(action):
    result = []
    thread = threading.Thread(target=lambda: result.append(action()))
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    return result[0]


def test_another_thread_sees_it():
    xs, expected = put_off()
    assert in_thread(lambda: all_same(xs, expected))
    xs, expected = put_off()
    in_thread(lambda: torch._foreach_add_(xs, 1.0))
    assert _testing.deferred_op_count() == 1  # the other's
    assert all_same(xs, [x + 1 for x in expected])


def test_threads_side_by_side():
    def work(device, seed):
        xs, ys = tensors(device, seed), tensors(device, seed + 100)
        for _ in range(5):
            torch._foreach_mul_(xs, 0.5)
            roots = torch._foreach_sqrt(ys)
            torch._foreach_addcdiv_(xs, ys, roots, 0.1)
            torch._foreach_add_(ys, xs)
        return [x.cpu() for x in (*xs, *ys)]

    results = {}
    with torch_chameleon.config.patch(oversubscription=16.0):
        threads = [
            threading.Thread(
                target=lambda s=seed: results.update({s: work("chameleon", s)})
            )
            for seed in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    for seed in range(6):
        assert all_same(results[seed], work("cpu", seed))
