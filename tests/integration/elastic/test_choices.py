"""What a launcher does about a failure: each option chosen by its price.

Two ranks with gloo; that a policy can be forced is in test_survival.py, but for
checkpoints, which is here. And what the model says of a rank less is what a
run with a rank less then shows, on a simulated GPU.
"""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from launching import SCRIPT, last_line, launch, lives, ours
from test_survival import run, without_failure

KIND = "gpt_without_dropout"  # one rank alone would draw other numbers


def survive(folder, failures, *options, ranks_left=2):
    """Runs it to the bits of the run that never failed; what it printed."""
    printed, results = run(ours(2, *options), folder, KIND, "ddp", failures)
    assert results[:ranks_left] == without_failure(KIND, "ddp")[:ranks_left]
    assert lives(folder)[-1][1] == ranks_left
    return printed


def choices(printed):
    """Of each failure, the line with prices and the choice."""
    return [
        line.rpartition("chosen: ")[::2]
        for line in printed.splitlines()
        if line.startswith("chameleon: a rank failed: ")
    ]


@pytest.mark.slow
def test_in_place_is_cheapest(tmp_path):
    printed = survive(tmp_path, "kill:1:3:backward")
    ((prices, choice),) = choices(printed)
    assert choice == "in place"
    assert "resharded onto 1 " in prices
    assert "from the checkpoint: none is written" in prices


@pytest.mark.slow
def test_a_lost_device_leaves_the_others(tmp_path):
    printed = survive(
        tmp_path, "kill:0:3:backward", "--lost-devices", ranks_left=1
    )
    ((prices, choice),) = choices(printed)
    assert choice == "resharded onto 1"
    assert "in place: its device is lost" in prices
    assert last_line(printed).startswith(
        "elastic: 1 failure (resharded onto 1); "
    )


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["auto", "reshard"])
def test_those_who_are_left_take_their_own_samples(policy, tmp_path):
    command = ours(2, "--lost-devices", "--allow-fewer-samples", "--policy",
                   policy)  # fmt: skip
    printed, results = run(command, tmp_path, KIND, "ddp", "kill:1:3:backward")
    assert [choice for _, choice in choices(printed)] == (
        ["fewer samples on 1"] if policy == "auto" else []
    )
    assert last_line(printed).startswith(
        "elastic: 1 failure (fewer samples on 1); "
    )
    assert lives(tmp_path)[-1][1] == 1
    assert (tmp_path / "shares.0").read_text() == "2"
    assert results[0] != without_failure(KIND, "ddp")[0]


@pytest.mark.slow
def test_a_rank_that_fails_at_once_has_no_device(tmp_path):
    failures = "kill:1:3:forward,kill:1:3:forward"
    printed = survive(tmp_path, failures, ranks_left=1)
    made = [choice for _, choice in choices(printed)]
    assert made == ["in place", "resharded onto 1"]


@pytest.mark.slow
def test_memory_that_is_gone_leaves_the_checkpoint(tmp_path):
    saved = tmp_path / "saved"
    printed = survive(
        tmp_path, "lose:1:5:backward", "--checkpoint", saved,
        "--checkpoint-steps", "2",
    )  # fmt: skip
    ((prices, choice),) = choices(printed)
    assert choice == "from the checkpoint"
    assert "in place: no generation is whole" in prices
    assert lives(tmp_path)[1][0] in (2, 4)  # 4, if the disk was quick
    assert len(list(saved.iterdir())) == 2


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_checkpoints_by_force(way, tmp_path):
    printed, results = run(
        ours(2, "--policy", "checkpoint", "--checkpoint", tmp_path / "saved",
             "--checkpoint-steps", "2"),
        tmp_path, "gpt", way, "kill:1:5:forward",
    )  # fmt: skip
    assert results == without_failure("gpt", way)
    assert lives(tmp_path)[1][0] in (2, 4)
    assert last_line(printed).startswith(
        "elastic: 1 failure (from the checkpoint); "
    )


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 1])
def test_a_run_whose_launcher_ended_goes_on_from_disk(ranks, tmp_path):
    """As when the machine was lost; on fewer ranks, too."""
    saved = tmp_path / "saved"
    options = ["--checkpoint", saved, "--checkpoint-steps", "2"]
    launch(
        [*ours(2, "--max-restarts", "0", *options), SCRIPT, KIND, "fsdp2",
         tmp_path],
        "kill:0:5:forward",
        status=1,
    )  # fmt: skip
    _, results = run(ours(ranks, *options), tmp_path, KIND, "fsdp2")
    assert lives(tmp_path)[-1] in [(2, ranks), (4, ranks)]
    assert results[:ranks] == without_failure(KIND, "fsdp2")[:ranks]


@pytest.mark.slow
@pytest.mark.parametrize("budget_mib", [2000, 3000])
def test_what_a_rank_less_takes_is_what_was_said(budget_mib):
    """Within a tenth, from four ranks to two, where state does not fit."""
    script = Path(__file__).with_name("simulated_rank.py")
    said = math.nan
    for ranks in (4, 3, 2):
        done = subprocess.run(
            [sys.executable, script, str(ranks), str(budget_mib)],
            capture_output=True,
            check=True,
            text=True,
        )
        took, slowdown, live = json.loads(done.stdout.splitlines()[-1])
        assert live > budget_mib << 20
        if ranks < 4:
            assert took == pytest.approx(said, rel=0.1)
        said = took * slowdown
