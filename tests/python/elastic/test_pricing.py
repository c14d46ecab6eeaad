"""What options cost, and which of them is chosen at a failure."""

import argparse
import logging
import os
import shutil
import subprocess
import types

import pytest
import torch
from returning_rank import rank_fixture  # noqa: F401
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch_chameleon import _C, elastic
from torch_chameleon.elastic import _devices, _measuring
from torch_chameleon.elastic._chooser import Chooser
from torch_chameleon.elastic._failure import Failure
from torch_chameleon.elastic._figures import Figures
from torch_chameleon.elastic._memory import Memory
from torch_chameleon.elastic._pricing import price
from torch_chameleon.elastic._situation import Situation

FIGURES = Figures(
    step_s=2, slowdown=1.5, commit_s=0.5, restore_s=0.25, start_s=4
)


def now(ranks=3, reached=10, in_memory=9, **figures):
    return Situation(ranks, reached, in_memory, FIGURES._replace(**figures))


def prices(outlook):
    return {
        x.name: (x.ranks, x.recovery_s, x.lost_s, x.slower_s)
        for x in outlook.options
    }


def test_the_formula():
    outlook = price(now(), repair_s=90)
    assert prices(outlook) == {
        "in place": (3, 4.25, 2, 0),
        "resharded onto 2": (2, 4.25, 2, pytest.approx(30)),
    }
    assert outlook.impossible == {
        "from the checkpoint": "none is written",
        "fewer samples on 2": "needs --allow-fewer-samples",
    }
    assert outlook.best.name == "in place"
    assert outlook.best.price_s == 6.25


def test_measured_figures_go_before_those_that_stand_for_them():
    assert price(now(), 90, restart_s=7).best.recovery_s == 7.25
    assert price(now(restore_s=0), 90).best.recovery_s == 4.5
    # Of a step nothing is known: as many samples are taken by fewer ranks.
    unknown = price(now(slowdown=0), 90, is_device_lost=True)
    assert unknown.best.slower_s == pytest.approx(30)


def test_a_lost_device_leaves_fewer_ranks():
    outlook = price(now(), 90, is_device_lost=True)
    assert outlook.best.name == "resharded onto 2"
    assert outlook.impossible["in place"] == "its device is lost"
    alone = price(now(ranks=1), 90, is_device_lost=True)
    assert alone.best is None


def fewer(**figures):
    outlook = price(now(**figures), 90, True, may_take_fewer=True)
    return outlook.best.name, outlook.best.slower_s


def test_fewer_samples_cost_those_that_are_not_taken():
    # A rank less takes a third less; resharding is 1.5 times as long, or more.
    assert fewer() == ("fewer samples on 2", pytest.approx(30))
    assert fewer(slowdown=1.8) == (
        "fewer samples on 2", pytest.approx(90 * (1 - 2 / 3 / 1.2))
    )  # fmt: skip
    assert fewer(slowdown=1.8, longer=1.1) == (
        "fewer samples on 2", pytest.approx(90 * (1 - 2 / 3 / 1.1))
    )  # fmt: skip
    assert fewer(longer=1.25) == ("resharded onto 2", pytest.approx(30))
    alone = price(now(ranks=1), 90, may_take_fewer=True)
    assert alone.impossible["fewer samples on 0"] == "no rank is left"


def test_shares_stay_while_samples_are_fewer():
    given = options(allow_fewer_samples=True, lost_devices=True)
    chooser = Chooser()
    assert chosen(chooser, given, 1, 10) == "fewer samples on 2"
    assert (given.nproc_per_node, given.shares) == ("2", 3)
    given.allow_fewer_samples = False
    assert chosen(chooser, given, 1, 20) == "resharded onto 1"
    assert (given.nproc_per_node, given.shares) == ("1", 1)


def test_a_script_is_told_of_shares(monkeypatch):
    assert elastic.shares() == 1
    monkeypatch.setenv("CHAMELEON_SHARES", "3")
    assert elastic.shares() == 3


def test_the_checkpoint_is_for_those_who_have_nothing_else():
    saved = {"checkpoint_steps": 6, "checkpoint_s": 3}
    outlook = price(now(**saved), 90)
    assert prices(outlook)["from the checkpoint"] == (3, 7.25, 8, 0)
    assert outlook.best.name == "in place"
    forgot = price(now(in_memory=None, **saved), 90)
    assert forgot.best.name == "from the checkpoint"
    assert forgot.impossible.keys() == {
        "in place",
        "fewer samples on 2",
        "resharded onto 2",
    }
    lost = price(now(in_memory=None, **saved), 90, is_device_lost=True)
    assert prices(lost)["from the checkpoint"][0] == 2
    # Nobody wrote any: the run begins again.
    again = price(now(in_memory=None), 90)
    assert again.best.name == "in place"
    assert again.best.lost_s == 20


@pytest.mark.parametrize("reading_s", [0, 0.01])
def test_the_checkpoint_is_never_back_sooner_than_memory(reading_s):
    saved = {"checkpoint_s": 0.01, "reading_s": reading_s, "restore_s": 0.4}
    outlook = price(now(3, 9, checkpoint_steps=9, **saved), 90)
    assert outlook.best.name == "in place"
    assert prices(outlook)["from the checkpoint"][1] >= 4.4


COPIED = {"partner_steps": 8, "partner_s": 0.75}


def test_a_partner_s_memory_is_priced_as_any_other():
    outlook = price(now(in_memory=None, checkpoint_steps=6, **COPIED), 90)
    assert prices(outlook) == {
        "from a partner": (3, 5, 4, 0),
        "resharded onto 2": (2, 4.25, 4, pytest.approx(30)),
        "from the checkpoint": (3, 4.25, 8, 0),
    }
    assert outlook.best.name == "from a partner"
    assert outlook.impossible["in place"] == "no generation is whole"
    # What was measured on the way back goes before what copies took.
    back = price(now(in_memory=None, fetch_s=1, **COPIED), 90)
    assert back.best.recovery_s == 5.25
    # Nobody goes back to it while memory is newer.
    assert price(now(**COPIED), 90).best.name == "in place"
    lost = price(now(**COPIED), 90, is_device_lost=True)
    assert lost.impossible["from a partner"] == "its device is lost"
    # Where it is a checkpoint that is newer, it is that.
    saved = now(in_memory=None, checkpoint_steps=9, **COPIED)
    assert price(saved, 90).best.name == "from the checkpoint"


def test_ranks_of_a_machine_are_lost_together():
    apart = now(4, machines=2, slowdown=0, sharded=1, **COPIED)
    outlook = price(apart, 90)
    assert prices(outlook) == {
        "in place": (4, 4.25, 2, 0),
        "from a partner": (4, 5, 4, 0),
        # All shards go to all that are left.
        "resharded onto 2": (2, 7.25, 4, 45),
    }
    lost = price(apart, 90, is_device_lost=True)
    assert prices(lost) == {
        "from a partner": (4, 5, 4, 90),  # until another machine is there
        "resharded onto 2": (2, 7.25, 4, 45),
    }
    assert lost.best.name == "resharded onto 2"
    assert price(apart, 30, is_device_lost=True).best.name == lost.best.name
    assert lost.impossible["in place"] == "its machine is lost"
    assert price(now(2, machines=2, **COPIED), 90, True).impossible == {
        "in place": "its machine is lost",
        "fewer samples on 1": "is for one machine",
        "from the checkpoint": "none is written",
    }
    assert "4 ranks on 2 machines" in str(lost)


def test_a_machine_s_memory_is_lost_with_it():
    """In memory here is what its own ranks can go back to."""
    apart = now(4, machines=2, checkpoint_steps=6)
    outlook = price(apart, 90, is_device_lost=True)
    assert list(prices(outlook)) == ["from the checkpoint"]
    why = "no partner has a generation"
    assert outlook.impossible["from a partner"] == why
    assert outlook.impossible["resharded onto 2"] == why
    # Nobody wrote any: those that are left begin again.
    again = price(now(4, machines=2), 90, is_device_lost=True)
    assert again.best.name == "resharded onto 2"
    assert again.best.lost_s == 20


def test_what_partners_have_is_looked_for():
    memories = [Memory(Memory.create(rank)) for rank in range(2)]
    for rank, memory in enumerate(memories):
        memory.ledger.measured(partner_steps=6)
        for slot in memory.slots[0], memories[1 - rank].partner_slots[0]:
            slot.begin(3, 6, b"", [])
            slot.seal()
    assert Situation.of(memories, 2).figures.partner_steps == 6
    memories[0].slots[0].discard()
    found = Situation.of(memories, 2)
    assert (found.in_memory, found.figures.partner_steps) == (None, 6)
    # Another machine's is not seen.
    assert Situation.of(memories[:1], 2).figures.partner_steps == 6
    memories[1].partner_slots[0].discard()
    assert Situation.of(memories, 2).figures.partner_steps == 0


def test_a_situation_is_what_all_ranks_have():
    memories = [Memory(Memory.create(rank)) for rank in range(2)]
    for rank, memory in enumerate(memories):
        for slot, number in zip(memory.slots, (3, 4), strict=False):
            slot.begin(number, 2 * number, b"", [])
            slot.seal()
        memory.ledger.reached = 8 + rank
        memory.ledger.measured(step_s=1 + rank, checkpoint_steps=4 + rank)
    found = Situation.of(memories, 2)
    assert found[:3] == (2, 9, 8)
    assert found.figures == Figures(step_s=2, checkpoint_steps=4)
    memories[1].slots[1].discard()
    assert Situation.of(memories, 2).in_memory == 6
    memories[0].slots[0].discard()
    assert Situation.of(memories, 2).in_memory is None


def options(**changed):
    made = argparse.Namespace(
        nproc_per_node="3",
        shares=3,
        repair_seconds=90,
        lost_devices=False,
        allow_fewer_samples=False,
    )
    vars(made).update(changed)
    return made


def chosen(chooser, given, rank, reached):
    ranks = int(given.nproc_per_node)
    return chooser.next_launch(given, Failure(rank, now(ranks, reached), [], 0))


def test_a_rank_that_fails_twice_at_once_has_no_device(caplog):
    given, chooser = options(), Chooser()
    with caplog.at_level(logging.WARNING):
        assert chosen(chooser, given, 1, 10) == "in place"
    (said,) = caplog.messages
    assert said == (
        "chameleon: a rank failed: in place 6.25 s (4.25 back + 2.00 steps "
        "lost + 0.00 slower); resharded onto 2 36.25 s (4.25 back + 2.00 "
        "steps lost + 30.00 slower); fewer samples on 2: needs "
        "--allow-fewer-samples; from the checkpoint: none is written; a step "
        "takes 2 s, 3 s with a rank less; chosen: in place"
    )
    assert chosen(chooser, given, 2, 11) == "in place"  # another one
    assert chosen(chooser, given, 2, 13) == "in place"  # later
    assert chosen(chooser, given, 2, 14) == "resharded onto 2"
    assert given.nproc_per_node == "2"
    assert chosen(chooser, given, 1, 14) == "in place"  # has another number


def test_survivors_do_not_see_the_gpu_that_is_lost(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    given = options(start_method="forkserver")
    _devices.lose_device(given, 1, 4)
    assert given.start_method == "spawn"  # it has another environment
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,2,3"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    _devices.lose_device(given, 2, 3)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,2"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    given.start_method = "forkserver"
    _devices.lose_device(given, 0, 3)  # they share GPUs
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,2"
    assert given.start_method == "forkserver"


def test_a_replica_sees_its_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    _devices.take_device(2, 3)  # they share GPUs
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,6"
    _devices.take_device(1, 2)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "6"


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Makes a driver whose second GPU gives an answer, after some seconds."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    def make(answer, seconds=0):
        source, library = tmp_path / "cuda.c", tmp_path / "cuda.so"
        source.write_text(f"""
            unsigned sleep(unsigned);
            int cuInit(unsigned flags) {{ return 0; }}
            int cuDeviceGet(int* device, int number) {{
                *device = number;
                return 0;
            }}
            int cuDevicePrimaryCtxRetain(void** context, int device) {{
                if (device == 1) sleep({seconds});
                return device == 1 ? {answer} : 0;
            }}""")
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-o", library, source], check=True
        )
        monkeypatch.setenv("CHAMELEON_TEST_CUDA_DRIVER", str(library))

    return make


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(
    ("answer", "lost"), [(0, False), (2, False), (46, False), (214, True),
                         (999, True)],
)  # fmt: skip
def test_a_driver_says_whether_a_gpu_is_lost(answer, lost, driver):
    driver(answer)
    assert _devices.is_lost(1, 2) == lost
    assert not _devices.is_lost(0, 2)
    assert not _devices.is_lost(1, 3)  # they share GPUs


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_driver_that_hangs_has_lost_it(driver, monkeypatch):
    driver(0, seconds=60)
    monkeypatch.setattr(_devices, "_TIMEOUT_S", 0.2)
    assert _devices.is_lost(1, 2)


def test_without_a_driver_nobody_can_say(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CHAMELEON_TEST_CUDA_DRIVER", "nowhere.so")
    assert not _devices.is_lost(1, 2)


def test_a_device_that_its_driver_lost_is_lost():
    given = options()
    failure = Failure(1, now(3, 10), [], 0, is_device_lost=True)
    assert Chooser().next_launch(given, failure) == "resharded onto 2"


def test_a_checkpoint_on_fewer_ranks_has_fewer_samples_too():
    given = options(allow_fewer_samples=True, lost_devices=True)
    forgot = now(3, 10, in_memory=None, checkpoint_steps=8)
    done = Chooser().next_launch(given, Failure(1, forgot, [], 0))
    assert done == "from the checkpoint"
    assert (given.nproc_per_node, given.shares) == ("2", 3)


@pytest.mark.parametrize(
    ("ends", "first"),
    [
        ({0: (1, 5), 1: (-9, 6)}, 1),  # the other one missed it
        ({0: (1, 6), 1: (1, 5)}, 1),
        ({0: (-9, 6), 1: (1, 5), 2: (-11, 4)}, 2),
    ],
)
def test_who_failed_first(ends, first):
    failures = {
        rank: types.SimpleNamespace(exitcode=code, timestamp=at)
        for rank, (code, at) in ends.items()
    }
    error = ChildFailedError.__new__(ChildFailedError)
    error.failures = failures
    assert Failure.first(error) == first


def modelled(monkeypatch, then, physical="cuda"):
    """What is asked of a model that knows of 100 bytes, and the answer."""
    asked = []
    monkeypatch.setattr(_C, "swap_stats", lambda _: {"hbm_budget": 100})
    monkeypatch.setattr(_C, "physical_device", lambda: physical)

    def model(device, choose):
        asked.extend(choose({}))
        times = [{"duration_ns": 10}, {"duration_ns": 11}, then]
        return {"steps": times[: len(asked)]}

    monkeypatch.setattr(_C, "what_if_here", model)
    return asked


def test_a_step_with_a_rank_less_is_the_plan_s_model(monkeypatch):
    asked = modelled(monkeypatch, {"duration_ns": 12})
    assert _measuring.slowdown(0, 4, True) == pytest.approx(4 / 3 * 1.2)
    assert asked == [100, 88, 75]
    asked = modelled(monkeypatch, None)
    assert _measuring.slowdown(0, 4, False) == pytest.approx(4 / 3)
    assert asked == [100]
    # Ranks that are left share the machine's memory.
    asked = modelled(monkeypatch, {"duration_ns": 10}, "cpu")
    unset = types.SimpleNamespace(hbm_budget=None)
    monkeypatch.setattr(_measuring, "config", unset)
    assert _measuring.slowdown(0, 2, True) == 2
    assert asked == [100]
    modelled(monkeypatch, None)  # the model finds no room
    assert _measuring.slowdown(0, 4, True) == pytest.approx(4 / 3 * 1.1)


def test_a_step_with_a_machine_less_is_the_plan_s_model(monkeypatch):
    asked = modelled(monkeypatch, {"duration_ns": 12})
    assert _measuring.slowdown(0, 4, True, 2) == pytest.approx(2 * 1.2)
    assert asked == [100, 75, 50]
    asked = modelled(monkeypatch, None)
    assert _measuring.longer(0, 4, 30, 2) == pytest.approx(1.1)
    assert asked == [100, 70]


def test_sharded_state_leaves_less_room(monkeypatch):
    asked = modelled(monkeypatch, None)
    assert _measuring.longer(0, 4, 30) == pytest.approx(1.1)
    assert asked == [100, 90]
    asked = modelled(monkeypatch, None)
    assert _measuring.longer(0, 4, 0) == 1
    assert asked == [100]
    asked = modelled(monkeypatch, None, "cpu")
    unset = types.SimpleNamespace(hbm_budget=None)
    monkeypatch.setattr(_measuring, "config", unset)
    assert _measuring.longer(0, 4, 30) == 1
    assert asked == [100]


def test_nothing_is_modelled_where_no_step_was_recorded(monkeypatch):
    monkeypatch.setattr(_C, "swap_stats", lambda _: {"hbm_budget": 100})

    def none_yet(device, choose):
        raise RuntimeError("no step has ended")

    monkeypatch.setattr(_C, "what_if_here", none_yet)
    assert _measuring.slowdown(0, 2, True) is None
    assert _measuring.longer(0, 2, 1) is None


def test_explain_prints_a_table(rank):
    layer = torch.nn.Linear(8, 8).to("chameleon")
    state = rank.state(layer=layer, step=0)
    while state.step < 3:
        layer(torch.ones(2, 8, device="chameleon")).sum().backward()
        state.step += 1
        state.commit()
    rank.settle()
    outlook = elastic.explain(repair_seconds=60)
    assert outlook.now[:3] == (1, 3, 3)
    assert outlook.now.figures.kept_bytes >= 8 * 8 * 4
    assert 0 < outlook.now.figures.commit_s < outlook.now.figures.start_s
    assert outlook.best.name == "in place"
    head, titles, in_place, *rest = str(outlook).splitlines()
    assert head.startswith("If one of 1 ranks were lost now (a step takes 0.0")
    assert titles.split() == [
        "option", "total", "back", "steps", "lost", "slower"
    ]  # fmt: skip
    assert in_place.startswith("in place")
    assert [row.split("  ")[-1] for row in rest[:2]] == [
        "needs --allow-fewer-samples", "no rank is left"
    ]  # fmt: skip


def test_explain_knows_of_machines(rank, monkeypatch):
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    state = rank.state(step=0)
    state.step += 1
    state.commit()
    rank.settle()
    lost = elastic.explain(device_lost=True)
    assert lost.now.machines == 2
    assert lost.impossible["in place"] == "its machine is lost"


def test_explain_needs_a_state_that_is_kept():
    state = elastic.State(step=0)
    with pytest.raises(RuntimeError, match=r"there is no elastic\.State"):
        elastic.explain()
    state.commit()


def test_a_process_s_age():
    assert 0 < _measuring._age() < os.times().elapsed
