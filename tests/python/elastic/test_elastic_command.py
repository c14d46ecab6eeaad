"""`python -m torch_chameleon elastic`: what it refuses, what it says."""

import os
import sys

import pytest
from torch.distributed.elastic.metrics.api import MetricData
from torch.distributed.elastic.multiprocessing.errors import (
    ChildFailedError,
    ProcessFailure,
)
from torch_chameleon.elastic import _healing, command
from torch_chameleon.elastic._failure import Failure
from torch_chameleon.elastic._failures import Failures, Seen
from torch_chameleon.elastic._figures import Figures
from torch_chameleon.elastic._memory import Memory
from torch_chameleon.elastic._policies import InPlace, Reshard
from torch_chameleon.elastic._situation import Situation


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--policy", "heal"], "--policy heal: torchft cannot be imported"),
        (["--policy", "checkpoint"], "checkpoint needs --checkpoint FOLDER"),
        (["--checkpoint-steps", "0"], "--checkpoint-steps = 0 must be at"),
        (["--checkpoint-steps", "5"], "nothing is written without"),
        (["--repair-seconds", "nan"], "--repair-seconds = nan must be at"),
        (["--repair-seconds", "-1"], "--repair-seconds = -1.0 must be at"),
        (["--policy", "pray"], "argument --policy: invalid choice: 'pray'"),
        (["--mirror-steps", "0"], "--mirror-steps = 0 must be at"),
        (["--mirror-steps", "x"], "argument --mirror-steps: invalid int"),
        (["--max-restarts", "-1"], "--max-restarts = -1 must be at"),
        (["--nproc-per-node", "0"], "--nproc-per-node = 0 is less than 1"),
        (["--nproc-per-node", "x"], "Unsupported nproc_per_node value: x"),
        (["--nnodes", "a"], "--nnodes = 'a' must be a number of machines, or"),
        (["--nnodes", "1:2:3"], "--nnodes = '1:2:3' must be a number of"),
        (["--nnodes", "2", "--policy", "reshard"], "is for one machine"),
        (["--partner"], "--partner: with one machine a partner's memory is"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_a_sentence(
    options, sentence, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, "torchft", None)
    before = dict(os.environ)
    with pytest.raises(SystemExit) as ended:
        command.main([*options, __file__])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("torch_chameleon elastic: ")
    assert sentence in line
    assert dict(os.environ) == before


def test_a_script_that_is_not_there(capsys):
    with pytest.raises(SystemExit):
        command.main(["nowhere.py"])
    assert "no file nowhere.py" in capsys.readouterr().err


def failed(failures):
    failures.emit(MetricData(0, "torchelastic", "workers.default.failed", 1))


def well(failures):
    failures.emit(MetricData(0, "torchelastic", "workers.default.healthy", 1))


def test_the_last_line():
    memories = [Memory(Memory.create(rank)) for rank in range(2)]
    for each in memories:
        each.ledger.back(0, 0, 2)
    failures = Failures(memories)
    well(failures)
    assert failures.seen().line() == "elastic: no failures; no steps lost"
    failed(failures)
    memories[0].ledger.back(3, 4, 2)
    failed(failures)
    assert failures.seen().line() == (
        "elastic: 2 failures (in place, in place); 1 step lost; back after "
        "0.0 s"
    )
    failures.chose("given up")
    for each in memories:
        each.ledger.back(2, 4, 2)
    assert failures.seen().line() == (
        "elastic: 2 failures (in place, given up); 3 steps lost; back after "
        "0.0 s, 0.0 s"
    )


def test_the_last_line_knows_whose_memory_it_was():
    memories = [Memory(Memory.create(rank)) for rank in range(2)]
    failures = Failures(memories)
    failed(failures)
    memories[0].ledger.back(3, 4, 2)
    memories[0].ledger.fetches += 1
    failed(failures)
    memories[0].ledger.back(5, 5, 2)
    failed(failures)
    assert failures.seen().line() == (
        "elastic: 3 failures (from a partner, in place, in place); "
        "1 step lost; back after 0.0 s, 0.0 s"
    )


def test_the_last_line_knows_how_many_are_left():
    memory = Memory(Memory.create(0))
    memory.ledger.back(0, 0, 4)
    failures = Failures([memory])
    failed(failures)
    memory.ledger.fetches += 1
    memory.ledger.back(3, 4, 2)
    well(failures)
    memory.ledger.back(5, 5, 4)  # another machine came, and nothing failed
    failed(failures)
    memory.ledger.back(2, 6, 2, is_read=True)
    assert failures.seen().options == [
        "resharded onto 2",
        "from the checkpoint",
    ]
    assert failures.seen().lost == 5


class Options:
    nproc_per_node = "3"
    shares = 3
    allow_fewer_samples = False


FAILURE = Failure(0, Situation(3, 0, None, Figures()), [], 0)


def test_in_place_all_are_started_again():
    options = Options()
    assert InPlace().next_launch(options, FAILURE) == "in place"
    assert options.nproc_per_node == "3"


def test_resharding_goes_on_with_one_rank_less():
    options, policy = Options(), Reshard()
    said = [policy.next_launch(options, FAILURE) for _ in range(3)]
    assert said == ["resharded onto 2", "resharded onto 1", None]
    assert (options.nproc_per_node, options.shares) == ("1", 1)


def test_or_with_fewer_samples():
    options, policy = Options(), Reshard()
    options.allow_fewer_samples = True
    said = policy.next_launch(options, FAILURE)
    assert said == "fewer samples on 2"
    assert (options.nproc_per_node, options.shares) == ("2", 3)


@pytest.fixture
def launches(monkeypatch):
    """Each launch as torch's agent sees it; all of them fail."""
    made = []

    def run(options):
        made.append((options.nproc_per_node, options.max_restarts))
        failed(command.metrics._metrics_map["torchelastic"])
        process = ProcessFailure(0, os.getpid(), 1, "")
        raise ChildFailedError("train.py", {0: process})

    monkeypatch.setattr(command, "run", run)
    monkeypatch.setattr(command, "metrics", Metrics())
    monkeypatch.setattr(os, "environ", dict(os.environ))
    return made


class Metrics:
    """In the place of the agent's, which are the process's."""

    def configure(self, handler, group):
        self._metrics_map = {group: handler}


@pytest.mark.parametrize(
    ("options", "expected", "done"),
    [
        (["--policy", "in-place"], ["3", "3", "3"], "in place, in place"),
        (["--policy", "reshard"], ["3", "2", "1"],
         "resharded onto 2, resharded onto 1"),
        (["--policy", "auto"], ["3", "3", "2"],
         "in place, resharded onto 2"),
        (["--policy", "checkpoint", "--checkpoint", "."], ["3", "3", "3"],
         "from the checkpoint, from the checkpoint"),
    ],
)  # fmt: skip
def test_the_launch_counts_restarts(options, expected, done, launches, capsys):
    given = ["--nproc-per-node", "3", "--max-restarts", "2", *options]
    assert command.main([*given, __file__]) == 1
    assert launches == [(ranks, 0) for ranks in expected]
    assert capsys.readouterr().out == (
        f"elastic: 3 failures ({done}, given up); no steps lost\n"
    )


def test_agents_of_several_machines_count_them(launches, capsys):
    given = ["--nproc-per-node", "3", "--nnodes", "2", "--max-restarts", "2"]
    assert command.main([*given, __file__]) == 1
    assert launches == [("3", 2)]
    assert "1 failure (given up)" in capsys.readouterr().out


def test_a_fork_server_does_not_know_of_other_shares(monkeypatch, launches):
    found = []

    def run(options):
        found.append((os.environ["CHAMELEON_SHARES"], options.start_method))
        process = ProcessFailure(0, os.getpid(), 1, "")
        raise ChildFailedError("train.py", {0: process})

    monkeypatch.delenv("CHAMELEON_SHARES", raising=False)
    monkeypatch.setattr(command, "run", run)
    given = ["--nproc-per-node", "3", "--max-restarts", "1",
             "--allow-fewer-samples", "--start-method",
             "forkserver"]  # fmt: skip
    monkeypatch.setitem(command.BUILT, "auto", Resharding)
    assert command.main([*given, __file__]) == 1
    assert found == [("3", "forkserver"), ("2", "spawn")]


class Resharding:
    def next_launch(self, options, failure):
        options.nproc_per_node, options.shares = "2", 2
        return "resharded onto 2"


def test_replicas_write_no_checkpoints(capsys, monkeypatch):
    monkeypatch.setattr(_healing, "why_not", str)
    with pytest.raises(SystemExit):
        command.main(["--policy", "heal", "--checkpoint", ".", __file__])
    assert "--policy heal takes no --checkpoint" in capsys.readouterr().err


def test_what_replicas_saw_is_in_one_line():
    seen = Seen(["healed"], [1.0], 1).with_those_of(Seen([], [], 0))
    assert seen.with_those_of(Seen(["healed"], [2.0], 0)).line() == (
        "elastic: 2 failures (healed, healed); 1 step lost; "
        "back after 1.0 s, 2.0 s"
    )
