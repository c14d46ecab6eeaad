"""A host that has no room for what is kept, and what is said of it."""

import pytest
import torch
from returning_rank import rank_fixture  # noqa: F401
from support import MIB
from torch_chameleon import _C, config
from torch_chameleon.elastic import _room
from torch_chameleon.elastic._memory import Memory
from torch_chameleon.elastic._room import shortage


@pytest.fixture
def machine(monkeypatch):
    """Says what is available; evicted tensors may take 32 MiB."""
    monkeypatch.setattr(_room, "_evicted_bytes", lambda: (0, 32 * MIB))

    def has(available):
        monkeypatch.setattr(_C, "machine_memory", lambda: (0, available))

    return has


def memories(ranks):
    return [Memory(Memory.create(rank)) for rank in range(ranks)]


def test_there_is_room_for_both(machine):
    machine(2 * (2 * 8 + 32) * MIB)
    assert shortage(memories(2), 8 * MIB, 2) is None
    machine(2 * (2 * 8 + 32) * MIB - 1)
    assert shortage(memories(2), 8 * MIB, 2).startswith(
        "elastic.State keeps 2 copies of 8.00 MiB for each of 2 ranks, "
    )


def test_what_is_there_by_now_is_not_counted_again(machine):
    made = memories(1)
    machine((8 + 32) * MIB)
    assert shortage(made, 8 * MIB, 2) is not None
    (block,), _ = made[0].slots[0].begin(1, 1, b"", [8 * MIB])
    block.fill_(1)
    assert shortage(made, 8 * MIB, 2) is None


def test_it_says_which_budget_fits(machine):
    machine(40 * MIB)
    assert shortage(memories(2), 8 * MIB, 2).endswith(
        "32.00 MiB more than it has by now; with 64.00 MiB that host_budget "
        "still allows it is more than the 40.00 MiB of host memory that are "
        "available. Set torch_chameleon.config.host_budget = 4.00 MiB or less"
    )
    machine(30 * MIB)
    assert shortage(memories(2), 8 * MIB, 2).endswith(
        "Name less in elastic.State, or start fewer ranks here"
    )


def test_what_may_still_be_evicted(monkeypatch):
    torch.chameleon.init()
    monkeypatch.setattr(config, "host_budget", 32 * MIB)
    used, most = _room._evicted_bytes()
    assert 0 <= used <= most == 32 * MIB


def test_the_first_commit_says_it_once(machine, rank, caplog):
    machine(8 * MIB)
    layer = torch.nn.Linear(512, 1024).to("chameleon")
    state = rank.state(layer=layer, step=0)
    for _ in range(2):
        state.commit()
    rank.settle()
    (said,) = caplog.messages
    assert said.startswith("chameleon: elastic.State keeps 2 copies of 2.0")


def write(root, **files):
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


MEMINFO = "MemTotal: 400 kB\nMemFree: 1 kB\nMemAvailable:   300 kB\n"


def test_a_machine_without_groups(tmp_path):
    write(tmp_path, **{"proc/meminfo": MEMINFO})
    assert _C.machine_memory(str(tmp_path)) == (400 * 1024, 300 * 1024)


@pytest.mark.parametrize(
    ("said", "folder", "names"),
    [
        ("0::/a/b", "sys/fs/cgroup",
         ("memory.max", "memory.current", "inactive_file")),
        ("3:cpu:/x\n5:cpu,memory:/a/b", "sys/fs/cgroup/memory",
         ("memory.limit_in_bytes", "memory.usage_in_bytes",
          "total_inactive_file")),
    ],
)  # fmt: skip
def test_the_tightest_group_counts(said, folder, names, tmp_path):
    limit, usage, cache = names
    write(
        tmp_path,
        **{
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": f"{said}\n",
            f"{folder}/a/b/{limit}": "max\n",
            f"{folder}/a/{limit}": "100000\n",
            f"{folder}/a/{usage}": "90000\n",
            f"{folder}/a/memory.stat": f"anon 5\n{cache} 20000\n",
            f"{folder}/{limit}": "9223372036854771712\n",  # none
        },
    )
    assert _C.machine_memory(str(tmp_path)) == (100000, 30000)
    (tmp_path / folder / "a" / usage).write_text("130000\n")
    assert _C.machine_memory(str(tmp_path)) == (100000, 0)


def test_it_is_what_this_machine_says():
    assert _C.machine_memory()[1] > 0
