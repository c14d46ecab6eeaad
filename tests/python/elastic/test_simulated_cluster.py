"""The benchmark of failures on 32 simulated cards: small, and by hand."""

import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tests/benchmarks/elastic"))

import cluster_table  # noqa: E402
import peers  # noqa: E402
import restarting  # noqa: E402
from cluster import compute_left  # noqa: E402
from failure_schedules import (  # noqa: E402
    CARD,
    KINDS,
    MEMORY,
    PROCESS,
    Event,
    Kind,
    draw,
)

HOUR_S = 3600.0
KIND = Kind(HOUR_S, HOUR_S, 0.5)
STEPS = {
    ranks: restarting.Step(4 * 4 / ranks, ranks / (ranks - 1), 0)
    for ranks in (4, 3, 2)
}  # four ranks: 4 s


def played(policy, *events, length_s=1000, fewer=False):
    run = restarting.Restarting(policy, STEPS, KIND, length_s, fewer=fewer)
    run._every = 1
    run.play(events)
    return run


def test_nothing_fails():
    assert len(played("auto").taken) == 250


def test_a_process_costs_a_restart_and_at_most_two_steps():
    run = played("auto", Event(410, 1, PROCESS, 0))
    # 102 steps, of which one is lost; the next ones begin 31 s later.
    assert run.choices == ["in place"]
    assert len(run.taken) == 101 + (1000 - 410 - 31) // 4


def test_a_lost_card_leaves_the_others():
    run = played("auto", Event(410, 1, CARD, 10_000))
    assert run.choices == ["resharded onto 3"]
    assert len(run.taken) == 101 + int((1000 - 410 - 31) / (16 / 3))
    run = played("auto", Event(410, 1, CARD, 10_000), fewer=True)
    assert run.choices == ["fewer samples on 3"]
    assert len(run.taken) == 101 + (1000 - 410 - 31) // 4
    assert run.taken[-1] == restarting.SAMPLES * 3 / 4


def test_in_place_waits_for_a_card():
    run = played("in-place", Event(410, 1, CARD, 200))
    assert len(run.taken) == 101 + (1000 - 610 - 30) // 4
    assert len(played("in-place", Event(410, 1, CARD, 9999)).taken) == 101


def test_a_card_that_comes_back_is_worth_a_restart():
    run = played("auto", Event(410, 1, CARD, 200))
    slow = int((200 - 31) / (16 / 3))
    assert len(run.taken) == 101 + slow + (1000 - 610 - 30) // 4


def test_memory_that_is_damaged_leaves_the_checkpoint():
    run = played("auto", Event(702, 1, MEMORY, 0))
    assert run.choices == ["from the checkpoint"]
    assert len(run.taken) == 100 + (1000 - 702 - 31) // 4


def test_compute_that_is_left():
    events = [Event(100, 1, CARD, 50), Event(120, 1, CARD, 500),
              Event(900, 2, CARD, 500), Event(10, 3, PROCESS, 0)]  # fmt: skip
    assert compute_left(events, 1000, 4) == 1 - (50 + 100) / 4000


def test_yardsticks_by_hand():
    oobleck = peers.Oobleck(32, 32.0, 1000)
    a_layer = 32 * 32 / 256 / 32
    assert oobleck.step() == (512, (32 + 3) * 8 * a_layer)
    oobleck.healthy -= {0, 1, 2}  # one layer of cards is left: 32 layers
    assert oobleck.step()[1] == 39 * 8 * a_layer  # 36 through four stages
    recycle = peers.ReCycle(32, 32.0, 1000)
    assert recycle.step() == (512, 35 * 8 * a_layer)
    recycle.healthy -= {0, 4}  # of one stage: six take 256
    assert recycle.step()[1] == 43 * 8 * a_layer
    healing = peers.Healing(2.0, 4, 1000)
    healing.play([Event(410, 1, PROCESS, 0)])
    # Five seconds for a group, 25 with three, five, and all again.
    assert healing.taken.count(512 * 3 / 4) == 25 // 2
    assert healing.taken.count(512) == 205 + (1000 - 410 - 30 - 5) // 2


@pytest.mark.parametrize("label", KINDS)
def test_auto_is_behind_no_fixed_policy(label, capsys):
    steps = cluster_table.read_steps()["Llama 7B, FSDP2, k = 2"]
    kind, length_s = KINDS[label], 6 * HOUR_S
    schedule = draw(kind, 1, length_s, 32)
    assert schedule == draw(kind, 1, length_s, 32)
    found = {
        name: [cluster_table.efficiency(make, kind, schedule, 1.0, length_s)]
        for name, make in cluster_table.policies("k =", steps).items()
    }
    cluster_table.check(label, found)
    assert capsys.readouterr().err == ""


def test_a_step_with_a_rank_less_is_what_was_said():
    for steps in cluster_table.read_steps().values():
        for ranks, row in steps.items():
            if ranks - 1 in steps:
                then = steps[ranks - 1].step_s
                assert row.step_s * row.slowdown == pytest.approx(then, rel=0.1)


@pytest.mark.slow
def test_the_page_is_what_is_written():
    page = cluster_table.PAGE.read_text()
    assert page.partition(cluster_table.MARK)[2] == cluster_table.tables(), (
        "python tests/benchmarks/elastic/cluster_table.py writes it"
    )
