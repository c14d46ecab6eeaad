"""Who holds the memory: the launcher, or a process that ends with the agent."""

import contextlib
import gc
import os
import pathlib
import select
import signal
import subprocess
import sys
import time

import pytest
from torch_chameleon.elastic import _keeper
from torch_chameleon.elastic._memory import FILES, Memory

LIMIT_S = 20


def ours(process):
    """The memory files that a process holds."""
    links = []
    for each in pathlib.Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # what lists the folder
            links.append(os.readlink(each))
    return [link for link in links if "chameleon elastic" in link]


def wait_for(condition):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def agent():
    """A process that stands for torchrun."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def taken(monkeypatch):
    monkeypatch.setattr(_keeper, "_taken", False)
    monkeypatch.setattr(_keeper, "_started", [])


def launched(monkeypatch, rank=1, world=2):
    for name, value in {
        "RANK": rank,
        "LOCAL_RANK": 0,
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": world,
        "TORCHELASTIC_RUN_ID": "run",
    }.items():
        monkeypatch.setenv(name, str(value))


def test_a_process_that_nobody_launched_has_none(monkeypatch, taken):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert _keeper.find() is None
    assert _keeper.find() is None


def test_the_launcher_s(monkeypatch, taken):
    files = [Memory.create(rank) for rank in range(2)]
    launcher = [Memory(each) for each in files]
    launcher[1].ledger.reached = 7
    launched(monkeypatch)
    monkeypatch.setenv("CHAMELEON_KEEPER", _keeper.address(files))
    found = _keeper.find()
    assert len(found.all) == 2
    assert found.own is found.all[1]
    assert found.own.ledger.reached == 7
    found.all[0].ledger.reached = 3
    assert launcher[0].ledger.reached == 3


def test_a_second_state_is_refused(monkeypatch, taken):
    files = [Memory.create(0)]
    launched(monkeypatch, 0, 1)
    monkeypatch.setenv("CHAMELEON_KEEPER", _keeper.address(files))
    kept = Memory(files[0])
    assert _keeper.find() is not None
    with pytest.raises(RuntimeError, match="could not tell two of them apart"):
        _keeper.find()
    del kept


@pytest.mark.parametrize("text", ["", "1", "x:1,2,3", "1:1,2", "1:99,98,97"])
def test_a_launcher_that_is_gone(monkeypatch, taken, text):
    launched(monkeypatch, 0, 1)
    monkeypatch.setenv("CHAMELEON_KEEPER", text)
    with pytest.raises(RuntimeError, match="names no launcher that runs"):
        _keeper.find()


def test_the_memory_is_gone_with_the_last_process():
    gc.collect()
    before = len(ours("self"))
    memory = Memory(Memory.create(0))
    assert len(ours("self")) == before + 2 * FILES  # mappings have one, too
    del memory
    assert len(ours("self")) == before


def test_another_agent_s_keeper_outlives_us_and_ends_with_it(agent, taken):
    gc.collect()
    before = len(ours("self"))
    memory = _keeper._of_agent(agent.pid, 1)
    memory.ledger.reached = 5
    wait_for(lambda: list(_keeper._keepers(agent.pid, 1)))  # it has begun
    ((process, files),) = _keeper._keepers(agent.pid, 1)
    assert len(files) == FILES
    wait_for(lambda: len(ours(process)) == FILES)
    assert list(_keeper._keepers(agent.pid, 0)) == []
    assert list(_keeper._keepers(os.getpid(), 1)) == []
    # It has a session of its own: an agent ends that of a worker.
    assert os.getsid(process) == process
    del memory
    assert _keeper._of_agent(agent.pid, 1).ledger.reached == 5
    assert len(_keeper._started) == 1
    agent.kill()
    agent.wait()
    assert _keeper._started[0].wait(LIMIT_S) == 0
    assert len(ours("self")) == before
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@pytest.mark.slow
def test_a_worker_dies_with_our_launcher():
    """Without it nobody holds its memory, or would start it again."""
    launcher = """
import os, subprocess, sys
from torch_chameleon.elastic import _keeper
from torch_chameleon.elastic._memory import Memory
files = [Memory.create(0)]
worker = '''
import sys, time
from torch_chameleon.elastic import _keeper
assert _keeper.find() is not None
print("ready", flush=True)
time.sleep(60)
'''
os.environ.update({
    "CHAMELEON_KEEPER": _keeper.address(files), "RANK": "0", "LOCAL_RANK": "0",
    "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "run"})
process = subprocess.Popen([sys.executable, "-c", worker])
print(process.pid, flush=True)
process.wait()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", launcher], stdout=subprocess.PIPE, text=True
    )
    worker = int(process.stdout.readline())
    watched = select.poll()
    watched.register(os.pidfd_open(worker), select.POLLIN)
    assert process.stdout.readline() == "ready\n"
    assert not watched.poll(0)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert watched.poll(LIMIT_S * 1000)
    process.stdout.close()
