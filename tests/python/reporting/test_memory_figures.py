"""torch.cuda's figures are about logical memory; swap_stats has the rest."""

import torch
import torch_chameleon
from support import MIB, moved
from torch_chameleon import _C, _testing

KEYS = [
    "logical_bytes",
    "resident_bytes",
    "peak_resident_bytes",
    "host_bytes",
    "peak_host_bytes",
    "host_reserved_bytes",
    "hbm_budget",
    "host_budget",
    "faults",
    "evictions",
    "clean_evictions",
    "bytes_in",
    "bytes_out",
    "prefetched_bytes",
    "prefetch_hits",
    "stall_ns",
    "compute_ns",
    "host_waits",
    "ops",
    "steps",
    "forecast_hits",
    "forecast_misses",
    "compactions",
    "pinned_bytes",
    "foreign_bytes",
    "dropped_bytes",
    "rerun_ops",
    "rerun_ns",
    "commits",
    "pinning_refusals",
    "pageable_bytes",
    "batch_refusals",
]


def test_keys():
    assert set(KEYS) <= set(torch_chameleon.swap_stats())
    assert all(type(v) is int for v in torch_chameleon.swap_stats().values())
    assert torch_chameleon.swap_stats("chameleon:0")


def test_allocated_is_exact():
    before = torch.chameleon.memory_allocated()
    x = torch.empty(1001, dtype=torch.uint8, device="chameleon")
    view = x[10:]
    assert torch.chameleon.memory_allocated() == before + 1001
    assert torch.accelerator.memory_allocated() == before + 1001
    assert torch_chameleon.swap_stats()["logical_bytes"] == before + 1001
    rounded = torch.chameleon.memory_reserved()
    del x
    assert torch.chameleon.memory_allocated() == before + 1001
    del view
    assert torch.chameleon.memory_allocated() == before
    assert rounded - torch.chameleon.memory_reserved() == 1024


def test_zero_bytes():
    before = torch.chameleon.memory_allocated()
    x = torch.empty(0, 5, device="chameleon")
    assert x.data_ptr() == 0
    assert x.is_chameleon
    assert (x + 1).shape == (0, 5)
    assert torch.chameleon.memory_allocated() == before


def test_storage_resize():
    x = torch.ones(MIB, dtype=torch.uint8, device="chameleon")
    live = torch.chameleon.memory_allocated()
    storage = x.untyped_storage()
    storage.resize_(0)
    assert torch.chameleon.memory_allocated() == live - MIB
    storage.resize_(MIB)
    assert torch.chameleon.memory_allocated() == live
    x.fill_(3)
    assert x.eq(3).all()


def test_peaks():
    torch.chameleon.reset_peak_memory_stats()
    live = torch.chameleon.memory_allocated()
    torch.empty(MIB, dtype=torch.uint8, device="chameleon")
    assert torch.chameleon.max_memory_allocated() == live + MIB
    assert torch.chameleon.max_memory_reserved() >= live + MIB
    torch.chameleon.reset_peak_memory_stats()
    assert torch.chameleon.max_memory_allocated() == live
    torch.chameleon.reset_accumulated_memory_stats()


def test_stats_have_torch_cuda_keys():
    torch.empty(1, device="chameleon")
    stats = torch.chameleon.memory_stats()
    for metric in ("allocated_bytes", "reserved_bytes", "active_bytes"):
        for value in ("current", "peak", "allocated", "freed"):
            assert f"{metric}.all.{value}" in stats
    for key in KEYS:
        assert f"swap.{key}" in stats
    assert "num_ooms" in stats


def test_summary():
    held = torch.empty(MIB, device="chameleon")
    text = torch.chameleon.memory_summary()
    assert "Allocated (logical)" in text
    assert "clean_evictions" in text
    rows = [line.rsplit(maxsplit=2) for line in text.splitlines()[2:]]
    names = [row[0] for row in rows]
    assert len(set(text.splitlines())) == len(text.splitlines())
    assert len(set(names)) == len(names)
    with_units = ("stall", "rerun", "bytes_in", "pinned", "prefetched")
    for row in rows:
        if row[0] in with_units:
            assert row[2] in ("ms", "B", "KiB", "MiB", "GiB"), row
    # What tensors take is said once.
    assert text.count("Allocated") == 1
    assert "logical_bytes" not in text
    assert len(torch.chameleon.memory_summary(abbreviated=True)) < len(text)
    del held


def test_reset_swap_stats():
    x = torch.ones(MIB, device="chameleon")
    _C.evict_all(0)
    assert torch_chameleon.swap_stats()["evictions"] > 0
    torch_chameleon.reset_swap_stats()
    stats = torch_chameleon.swap_stats()
    assert stats["evictions"] == stats["bytes_out"] == stats["ops"] == 0
    assert stats["logical_bytes"] >= 4 * MIB
    assert stats["peak_resident_bytes"] == stats["resident_bytes"]
    assert x[0].item() == 1


def test_clean_copies_are_free_to_evict():
    x = torch.ones(MIB, device="chameleon")
    first = moved(lambda: _C.evict_all(0))
    assert first["bytes_out"] >= 4 * MIB
    assert moved(lambda: x.sum().item())["bytes_in"] >= 4 * MIB
    second = moved(lambda: _C.evict(x))
    assert second["clean_evictions"] == 1
    assert second["bytes_out"] == 0
    x.add_(1)
    assert moved(lambda: _C.evict(x))["bytes_out"] == 4 * MIB


def test_reading_to_the_cpu_needs_no_fault():
    x = torch.ones(MIB, device="chameleon")
    _C.evict_all(0)
    difference = moved(lambda: x.cpu())
    assert difference["faults"] == difference["bytes_in"] == 0


def test_history():
    _C.reset_memory_history(0)
    x = torch.ones(MIB, device="chameleon")
    (x + 1).sum().item()
    history = _C.memory_history(0)
    times = [row[0] for row in history]
    assert times == sorted(times)
    assert max(row[1] for row in history) >= 8 * MIB
    assert all(row[2] <= torch_chameleon.config.hbm_budget for row in history)


def test_metadata_is_small():
    assert _testing.metadata_bytes_per_block <= 512
