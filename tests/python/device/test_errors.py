"""Errors say what was asked, what there is, and which option to change."""

import pytest
import torch
import torch_chameleon
from support import MIB, same_bits
from torch._subclasses.fake_tensor import FakeTensorMode
from torch_chameleon import _C, _testing


def zeros(mib):
    return torch.zeros(mib * MIB, dtype=torch.uint8, device="chameleon")


def test_past_the_logical_limit():
    with torch_chameleon.config.patch(hbm_budget="8MiB", oversubscription=2.0):
        held = zeros(5), zeros(5)
        live = torch.chameleon.memory_allocated()
        with pytest.raises(torch.OutOfMemoryError) as caught:
            zeros(7)
        text = str(caught.value)
        for part in ("oversubscription", "hbm_budget", "7.00", "16.00"):
            assert part in text
        assert torch.chameleon.memory_allocated() == live
        assert zeros(1).add(1).cpu().eq(1).all()  # the next op works
        del held


def test_operands_that_cannot_all_fit():
    with torch_chameleon.config.patch(hbm_budget="8MiB"):
        a, b = zeros(5), zeros(5)
        a.fill_(1)
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.add(a, b)
        text = str(caught.value)
        for part in ("add", "hbm_budget", "resident", "pinned", "host"):
            assert part in text.lower()
        assert a.cpu().eq(1).all()  # nothing has changed
        assert b.cpu().eq(0).all()
        del a, b


def test_in_place_op_that_cannot_fit_changes_nothing():
    with torch_chameleon.config.patch(hbm_budget="8MiB"):
        a, b = zeros(5), zeros(5)
        with pytest.raises(torch.OutOfMemoryError):
            a.add_(b.add_(1))
        assert b.cpu().eq(1).all()
        assert a.cpu().eq(0).all()
        del a, b


def test_out_of_memory_inside_a_kernel():
    """A cast of the operand, which only the kernel knows of, does not fit."""
    with torch_chameleon.config.patch(hbm_budget="8MiB"):
        x, other = zeros(5).add_(3), zeros(2).add_(4)
        with pytest.raises(torch.OutOfMemoryError, match="inside the kernel"):
            x.sum()
        assert _testing.block_state(x)["pins"] == 0
        assert x.cpu().eq(3).all()
        assert other.cpu().eq(4).all()
        assert other.add(1).cpu().eq(5).all()  # the next op works
        del x, other


def test_full_host_budget():
    with torch_chameleon.config.patch(
        hbm_budget="8MiB", host_budget="8MiB", recompute="off"
    ):
        held = []

        def fill():
            for _ in range(8):
                held.append(zeros(3).add_(1))

        with pytest.raises(torch.OutOfMemoryError, match="host_budget"):
            fill()
        for block in held:
            assert block.cpu().eq(1).all()
        held.clear()
        del block


def test_full_host_budget_where_ops_may_run_again():
    with torch_chameleon.config.patch(hbm_budget="8MiB", host_budget="8MiB"):
        torch_chameleon.reset_swap_stats()
        held = [zeros(3).add_(i) for i in range(8)]
        for i, block in enumerate(held):
            assert block.cpu().eq(i).all()
        stats = torch_chameleon.swap_stats()
        assert stats["peak_host_bytes"] <= 8 * MIB
        assert stats["rerun_ops"] >= stats["dropped_bytes"] // (3 * MIB) > 0
        del block
        held.clear()


def test_budget_below_what_is_pinned():
    x = zeros(4)
    before = torch_chameleon.config.hbm_budget
    with torch_chameleon.resident(x):
        with pytest.raises(ValueError, match="hbm_budget") as caught:
            torch_chameleon.config.hbm_budget = 2 * MIB
        assert "pinned" in str(caught.value)
    assert torch_chameleon.config.hbm_budget == before


def test_budget_below_what_is_resident_evicts(tight):
    held = [zeros(2).add_(i) for i in range(6)]
    assert torch_chameleon.swap_stats()["resident_bytes"] >= 12 * MIB
    tight(6 * MIB)
    assert torch_chameleon.swap_stats()["resident_bytes"] <= 6 * MIB
    for i, x in enumerate(held):
        assert x.cpu().eq(i).all()


def cuda_allows(mix):
    """What CUDA does with a mix of devices; needs no GPU."""
    with FakeTensorMode():
        try:
            mix(torch.ones(2, 2, device="cuda"), torch.ones(2, 2))
        except RuntimeError:
            return False
    return True


MIXES = {
    "add": lambda d, h: d + h,
    "matmul": lambda d, h: d @ h,
    "cat": lambda d, h: torch.cat([d, h]),
    "linear": lambda d, h: torch.nn.functional.linear(d, h),
    "in_place": lambda d, h: d.add_(h),
    "out": lambda d, h: torch.add(d, d, out=h),
    "where": lambda d, h: torch.where(d > 0, d, h),
    "foreach": lambda d, h: torch._foreach_add([d], [h]),
    "embedding": lambda d, h: torch.nn.functional.embedding(
        torch.zeros(1, dtype=torch.long), d
    ),
    "batch_norm": lambda d, h: torch.nn.functional.batch_norm(d, h[0], h[0]),
    "bce": lambda d, h: torch.nn.functional.binary_cross_entropy(
        d.sigmoid(), h.sigmoid()
    ),
}


@pytest.mark.parametrize("name", MIXES)
def test_cpu_mixed_with_chameleon(name):
    ours, host = torch.ones(2, 2, device="chameleon"), torch.ones(2, 2)
    assert not cuda_allows(MIXES[name])
    with pytest.raises(RuntimeError, match="device"):
        MIXES[name](ours, host)
    assert ours.eq(1).all()
    assert host.eq(1).all()


ALLOWED = {
    "scalar": lambda d: d + torch.tensor(2.0),
    "index": lambda d: d[torch.tensor([1, 0])],
    "index_put": lambda d: d.index_put((torch.tensor([0]),), torch.tensor(5.0)),
    "assign": lambda d: d.clone().copy_(torch.ones(2, 2)),
    "fill": lambda d: d.clone().fill_(torch.tensor(3.0)),
    "masked_fill": lambda d: d.masked_fill(d > 2, torch.tensor(0.5)),
}


# Sizes of the results depend on values: FakeTensorMode cannot tell.
ALLOWED_TOO = {
    "mask": lambda d: d[torch.tensor([True, False])],
    "lengths": lambda d: torch.nn.functional.ctc_loss(
        d.view(2, 1, 2).log_softmax(2),
        torch.ones(1, 1, dtype=torch.long, device=d.device),
        torch.tensor([2]),
        torch.tensor([1]),
    ),
}


@pytest.mark.parametrize("name", [*ALLOWED, *ALLOWED_TOO])
def test_cpu_mixes_that_cuda_allows(name):
    host = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    mix = (ALLOWED | ALLOWED_TOO)[name]
    if name in ALLOWED:
        assert cuda_allows(lambda d, _: mix(d))
    result = mix(host.chameleon())
    assert result.is_chameleon
    assert same_bits(result, mix(host))


def test_messages_name_the_device():
    with pytest.raises(RuntimeError, match="chameleon:0 and cpu"):
        torch.ones(2, device="chameleon") + torch.ones(2)


def test_ordinary_errors_are_native_errors():
    a = torch.ones(2, 3, device="chameleon")
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes"):
        a @ a
    with pytest.raises(IndexError):
        a[5]
    with pytest.raises(RuntimeError, match="size of tensor"):
        a + torch.ones(4, device="chameleon")
    assert (a + a).sum().item() == 12


def test_failed_op_leaves_no_pins():
    a = torch.ones(2, 3, device="chameleon")
    with pytest.raises(RuntimeError):
        a @ a
    assert _testing.block_state(a)["pins"] == 0
    assert torch_chameleon.swap_stats()["pinned_bytes"] == 0


def halving(train, size):
    """As accelerate's find_executable_batch_size, and with it the Trainer."""
    while True:
        try:
            return train(size), size
        except RuntimeError as error:
            # What its should_reduce_batch_size() asks.
            if len(error.args) != 1 or " out of memory." not in error.args[0]:
                raise
            size //= 2


def test_a_search_for_the_batch_size_finds_one(tight):
    tight(MIB)
    baseline = _C.swap_stats(0)["logical_bytes"]

    def in_one_op(size):
        x = torch.ones(size, 64, 64, device="chameleon")
        return (x * 2).sum().item()

    def in_all(size):
        kept = [torch.ones(size * 1024, device="chameleon") for _ in range(64)]
        return sum(x.sum().item() for x in kept)

    assert halving(in_one_op, 1024) == (2 * 16 * 4096, 16)
    assert halving(in_all, 1024)[1] <= 16
    assert _C.swap_stats(0)["logical_bytes"] == baseline
    assert _C.swap_stats(0)["pinned_bytes"] == 0
