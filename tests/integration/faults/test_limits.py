"""Hard limits, and sizes and numbers of tensors that strain them."""

import contextlib
import functools
import gc
import gzip
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch_chameleon
from support import MIB, ROOT, moved
from torch_chameleon import _C
from trainings import budget

KIB = 1024


def levels():
    torch.chameleon.synchronize()
    torch.chameleon.empty_cache()  # spare blocks and empty host slabs
    stats = torch_chameleon.swap_stats()
    names = ("logical_bytes", "resident_bytes", "host_bytes", "pinned_bytes")
    return tuple(stats[name] for name in names)


# ---- memory is given back at once

SIZE = 64 * KIB
PLACES = {
    "resident": lambda x: None,
    "on the host": _C.evict,
    "in both": lambda x: (_C.evict(x), (x == 0).any()),
}


def shrink(x):
    x.untyped_storage().resize_(0)


def resize(x):
    x.resize_(SIZE // 4)
    assert x.untyped_storage().nbytes() == SIZE  # as it is natively
    x.untyped_storage().resize_(SIZE // 4)


def set_another(x):
    x.set_(torch.ones(SIZE // 2, dtype=torch.uint8, device="chameleon"))


def set_data(x):
    x.data = torch.ones(0, dtype=torch.uint8, device="chameleon")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("action", "left"),
    [
        (shrink, 0),
        (resize, SIZE // 4),
        (set_another, SIZE // 2),
        (set_data, 0),
        (lambda x: None, SIZE),
    ],
    ids=["storage resize_(0)", "resize_", "set_", "data", "nothing"],
)
def test_memory_is_given_back_at_once(action, left, place):
    before = levels()
    x = torch.full((SIZE,), 7, dtype=torch.uint8, device="chameleon")
    PLACES[place](x)
    logical, resident, host, _ = before
    at_host = SIZE if place != "resident" else 0
    at_device = SIZE if place != "on the host" else 0
    assert levels() == (logical + SIZE, resident + at_device, host + at_host, 0)
    action(x)
    after = levels()
    assert after[0] == logical + left
    if left == 0:
        assert after == before
    elif left < SIZE:  # wherever it is
        moved_to = after[1] - resident + after[2] - host
        assert left <= moved_to <= 2 * left
    del x
    assert levels() == before


def test_parameters_that_come_and_go_as_in_fsdp(tight):
    """Their storages are emptied after each use, and filled before the next."""
    tight(8 * SIZE)
    before = levels()
    weights = [
        torch.full((SIZE // 4,), float(i), device="chameleon") for i in range(4)
    ]
    for _ in range(3):
        for i, weight in enumerate(weights):
            weight.untyped_storage().resize_(SIZE)
            weight.fill_(i)
            assert weight.sum().item() == i * SIZE // 4
            weight.untyped_storage().resize_(0)
            live = sum(w.untyped_storage().nbytes() for w in weights)
            assert levels()[0] == before[0] + live
    del weight, weights
    assert levels() == before


# ---- one tensor, many views, many tensors


@pytest.mark.parametrize("seed", range(3))
def test_a_tensor_of_nine_tenths_of_the_budget(tight, seed):
    tight(MIB)
    large = torch.zeros(MIB * 9 // 10 // 512 * 512, dtype=torch.uint8)
    ours = large.to("chameleon")
    small = [torch.full((SIZE // 2,), float(i)) for i in range(6)]
    theirs = [x.to("chameleon") for x in small]
    draws = random.Random(seed)
    torch_chameleon.reset_swap_stats()
    for _ in range(40):
        ours.add_(1)
        large.add_(1)
        i = draws.randrange(6)
        theirs[i].mul_(2)
        small[i].mul_(2)
    stats = torch_chameleon.swap_stats()
    assert stats["peak_resident_bytes"] <= MIB
    assert stats["evictions"] >= 79  # it fits beside none of the others
    assert torch.equal(ours.cpu(), large)
    assert all(map(torch.equal, (x.cpu() for x in theirs), small))


def test_thousands_of_views(tight):
    tight(MIB)
    before = levels()
    base = torch.arange(SIZE, dtype=torch.float32, device="chameleon")
    one = levels()
    views = [base[i : i + 7].view(1, 7) for i in range(5000)]
    assert levels() == one  # of one storage
    _C.evict(base)
    assert moved(functools.partial(views[77].add_, 1))["faults"] == 1
    assert views[80].tolist() == [[81, 82, 83, 84, 84, 85, 86]]
    del base
    gc.collect()
    assert levels()[0] == one[0]
    del views
    assert levels() == before


def resident_set_bytes():
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    "count", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)]
)
def test_many_small_tensors(count):
    """Memory and time grow with their number, and no faster."""
    with budget(count * 512 // 4, oversubscription=8.0):
        tensors, seconds = [], []
        memory = resident_set_bytes()
        for _ in range(4):
            start = time.perf_counter()
            for i in range(count // 4):
                tensors.append(torch.full((2,), i, device="chameleon"))
            seconds.append(time.perf_counter() - start)
        memory = resident_set_bytes() - memory
        stats = torch_chameleon.swap_stats()
        assert stats["evictions"] >= count // 2
        used = stats["peak_resident_bytes"] + stats["peak_host_bytes"]
        each = (memory - used) / count
        print(f"{count}: {each:.0f} bytes each beside their 512, {seconds} s")
        # Python's object, torch's tensor and storage, our block.
        assert each < 4096
        # Of equal work: all but the first quarter evict. A generous limit, as
        # others use the machine.
        assert max(seconds[2:]) < 20 * seconds[1] + 1
        draws = random.Random(count)
        for index in draws.sample(range(count), 200):
            i = index % (count // 4)
            assert tensors[index].tolist() == [i, i]
        if count < 100_000:
            _C.check_invariants(0, 2)
        start = time.perf_counter()
        tensors.clear()
        assert time.perf_counter() - start < 20 * sum(seconds) + 1
        assert levels() == (0, 0, 0, 0)


# ---- fragmentation

TRACES = ROOT / "tests/benchmarks/policy/traces"


def sizes_of(trace, largest):
    """All sizes that a recorded step has, scaled to a largest one."""
    with gzip.open(TRACES / f"{trace}.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    sizes = [size for row in rows for _, size in row.get("out", ())]
    factor = largest / max(sizes)
    return [max(1, int(size * factor)) for size in sizes]


@pytest.mark.parametrize(
    ("trace", "ops"),
    [
        ("resnet50_b256", 1500),
        *(
            pytest.param(trace, 60_000, marks=pytest.mark.slow)
            for trace in ("resnet50_b256", "lora_7b", "llama_1.3b_fused_adamw")
        ),
    ],
)
@pytest.mark.parametrize("policy", ["forecast", "lru"])
def test_fragmentation(trace, ops, policy):
    """Sizes in their order, lives of random length: each op finds its room."""
    size = 4 * MIB
    sizes = sizes_of(trace, int(0.45 * size))
    draws = random.Random(ops)
    alive = []  # tensors and what is in them
    with (
        torch_chameleon.config.patch(policy=policy),
        budget(size, oversubscription=8.0),
    ):
        live = 0
        for op in range(ops):
            wished = sizes[op % len(sizes)]
            while live + wished > 4 * size:
                index = draws.randrange(len(alive))
                live -= alive.pop(index)[0].numel()
            value = op % 251
            x = torch.full(
                (wished,), value, dtype=torch.uint8, device="chameleon"
            )
            live += wished
            alive.append([x, value])
            entry = draws.choice(alive)
            entry[0].add_(1)
            entry[1] = (entry[1] + 1) % 256
            if op % 50 == 0:
                x, value = draws.choice(alive)
                assert x.eq(value).all()
        stats = torch_chameleon.swap_stats()
        assert stats["compactions"] > 0
        assert stats["logical_bytes"] == live
        _C.check_invariants(0, 3)
        for x, value in alive:
            assert x.eq(value).all()
        print(f"{ops} ops, {stats['compactions']} compactions")
        alive.clear()
        del x, entry
        assert levels() == (0, 0, 0, 0)


# ---- inside a control group

INSIDE = """
import sys
with open(sys.argv[1] + "/cgroup.procs", "w") as group:
    group.write("0")
import torch, torch_chameleon
torch_chameleon.config.hbm_budget = "8MiB"
torch_chameleon.config.oversubscription = 4
limit = int(sys.argv[2])
kept = [torch.full((1 << 18,), float(i), device="chameleon") for i in range(30)]
stats = torch_chameleon.swap_stats()
assert 0 < stats["host_budget"] <= 0.8 * limit, stats
assert stats["host_bytes"] > 0
assert all(x.eq(i).all() for i, x in enumerate(kept))
print(stats["host_budget"])
"""


def own_groups():
    """Folders of the control groups that this process is in."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            yield Path("/sys/fs/cgroup", controllers, path.lstrip("/"))


@contextlib.contextmanager
def limited_group(limit):
    """A group in one of ours, or in that which CHAMELEON_TEST_CGROUP names."""
    named = os.environ.get("CHAMELEON_TEST_CGROUP")
    reasons = []
    for root in [Path(named)] if named else own_groups():
        group = root / f"chameleon-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError as error:
            reasons.append(str(error))
            continue
        try:
            files = [group / "memory.max", group / "memory.limit_in_bytes"]
            limits = [file for file in files if file.exists()]
            if limits:
                limits[0].write_text(str(limit))
                yield group
                return
            reasons.append(f"{root} has no memory controller")
        finally:
            group.rmdir()
    pytest.skip(f"no control group can be made here: {'; '.join(reasons)}")


def test_the_limit_of_a_control_group():
    limit = 2 << 30
    with limited_group(limit) as group:
        done = subprocess.run(
            [sys.executable, "-c", INSIDE, str(group), str(limit)],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
