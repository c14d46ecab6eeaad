"""`plan` and `report` name what would lower a peak, and by how much."""

import gc
import json
import pathlib

import pytest
import torch
from plan_trials import run_plan, run_text
from torch_chameleon._changes import advice, lives
from torch_chameleon._changes.optimizers import Optimizers

SLOW = {
    "fits": "swapped",
    "in_memory_ns": 100,
    "step_ns": 120,
    "peak_bytes": 100 << 20,
    "to_fuse": ["AdamW"],
    "peaks_after": {"fused": 80 << 20, "freed": 70 << 20, "half": 60 << 20},
}


@pytest.mark.parametrize(
    ("changed", "is_wanted"),
    [
        ({}, True),
        ({"step_ns": 104}, False),
        ({"fits": "no"}, True),
        ({"fits": "in memory"}, False),
        ({"fits": "not known"}, False),
    ],
)
def test_advice_is_for_what_does_not_fit_or_is_slow(changed, is_wanted):
    assert advice.is_wanted(SLOW | changed) == is_wanted


def test_what_helps_most_is_first():
    half, freed, fused = advice.advice(SLOW)
    assert half.startswith("half as many samples at a time")
    assert "60.0 MiB at best, modelled" in half
    assert freed.startswith("zero_grad() right behind step()")
    assert "70.0 MiB, modelled" in freed
    assert fused.startswith("fused=True for AdamW")
    assert "80.0 MiB, modelled" in fused


def test_no_more_than_three_are_said():
    states = {"states": {"AdamW": 8 << 20, "SGD": 4 << 20}}
    after = {**SLOW["peaks_after"], "states": 65 << 20}
    said = advice.advice(SLOW | states | {"peaks_after": after})
    assert [each[:4] for each in said] == ["half", "stat", "zero"]
    assert said[1] == (
        "states of AdamW and SGD in bfloat16, by an optimizer that keeps them "
        "so: a peak of 65.0 MiB, modelled"
    )


def test_a_host_that_is_large_enough_is_first():
    small = SLOW | {"fits": "no", "why": "host", "host_bytes": 8 << 30}
    first, *others = advice.advice(small | {"host_share": 0.8})
    assert first == (
        "a host with 10.0 GiB of memory, of which tensors that wait may take "
        "80%"
    )
    assert [each[:4] for each in others] == ["half", "zero"]
    first, *_ = advice.advice(small | {"host_share": 1.0})
    assert first == "8.00 GiB of the host's memory for tensors that wait"


@pytest.mark.parametrize(
    ("changed", "starts"),
    [
        ({"to_fuse": []}, ["half", "zero"]),
        ({"fits": "no", "limit": "op"}, ["half"]),
        (
            {"fits": "no", "why": "host", "host_bytes": 9, "host_share": 1},
            ["9 by", "half", "zero"],
        ),
        ({"peak_bytes": 72 << 20}, ["half"]),
        ({"peaks_after": {}}, []),
    ],
)
def test_what_does_not_help_is_not_said(changed, starts):
    assert [each[:4] for each in advice.advice(SLOW | changed)] == starts


def written(folder, *ops):
    """A trace: of each op its name, takes, makes and frees; sizes are 10."""
    file = folder / "trace.jsonl"
    lines = [
        {
            "op": name,
            "in": [[each, 10] for each in takes],
            "out": [[each, 10] for each in makes],
            "free": frees,
        }
        for name, takes, makes, frees in ops
    ]
    text = [json.dumps(each) for each in [{"trace": 1}, *lines, {"step": 1}]]
    file.write_text("\n".join(text))
    return str(file)


STEP = ("aten::_foreach_add_", [1, 2], [], [])


def test_lists_that_foreach_makes_would_not_be_there(tmp_path):
    trace = written(
        tmp_path,
        ("aten::mm", [1], [2], []),
        ("aten::_foreach_sqrt", [2], [3], []),
        ("aten::_foreach_add_", [1, 3], [], [3]),
    )
    assert lives.peaks_after(trace, 30)["fused"] == 20
    assert lives.peaks_after(trace, 34)["fused"] == 24  # what no op takes
    assert lives.peaks_after(trace, 15) == {}  # it has more


def test_states_are_there_all_the_time(tmp_path):
    trace = written(tmp_path, ("aten::mm", [1], [2], []), STEP)
    assert lives.peaks_after(trace, 100, states=40)["states"] == 80
    assert lives.peaks_after(trace, 100)["states"] == 100


def test_optimizers_say_what_they_have():
    seen = Optimizers()
    weights = [
        torch.nn.Parameter(torch.ones(64, dtype=dtype, device="chameleon"))
        for dtype in (torch.float32, torch.float32, torch.bfloat16)
    ]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    adam = torch.optim.Adam(weights[:1])
    kept = [adam, torch.optim.SGD(weights[1:], momentum=0.9)]
    for optimizer in [torch.optim.Adam(weights), *kept]:
        optimizer.step()
        seen.stepped(optimizer)
    del optimizer
    gc.collect()
    adam.zero_grad()
    adam.step()
    seen.stepped(adam)
    assert seen.states() == {"Adam": 512, "SGD": 256}
    assert seen.to_fuse() == ["Adam", "SGD"]


def test_the_step_that_stays_highest_counts():
    one = {"before": 90, "fused": 80, "half": 45}
    other = {"before": 100, "fused": 60, "half": 50}
    both = [one, {}, other]
    assert lives.highest(both, 100, 10) == {"fused": 80, "half": 50}
    assert lives.highest(both, 100, 70) == {"fused": 80, "half": 70}
    states = {"before": 100, "states": 80}
    assert lives.highest([states], 100, 90, states=40) == {"states": 80}
    assert lives.highest(both, 120, 10) == {}  # of no step that is known
    assert lives.highest([{}], 100, 100) == {}


def test_gradients_that_live_into_the_forward_would_be_gone(tmp_path):
    """The one with number 2 is made again."""
    trace = written(
        tmp_path,
        ("aten::mm", [1], [3], [2]),
        ("aten::mm", [1, 3], [2], [3]),
        STEP,
    )
    assert lives.peaks_after(trace, 30)["freed"] == 30  # it is needed there
    trace = written(
        tmp_path,
        ("aten::mm", [1], [3], []),
        ("aten::mm", [1, 3], [4], [3]),
        ("aten::sum", [4], [], [2, 4]),
        ("aten::mm", [1], [2], []),
        STEP,
    )
    assert lives.peaks_after(trace, 40)["freed"] == 30


def test_gradients_that_are_zeroed_are_needed_behind_that(tmp_path):
    trace = written(
        tmp_path,
        ("aten::zero_", [2], [], []),
        ("aten::mm", [1], [3], []),
        ("aten::mm", [1, 3], [4], [3]),
        ("aten::add_", [2, 4], [], [4]),
        STEP,
    )
    assert lives.peaks_after(trace, 40)["freed"] == 30


def test_gradients_that_are_added_to_are_needed(tmp_path):
    trace = written(
        tmp_path,
        ("aten::mm", [1], [3], []),
        ("aten::add_", [2, 3], [], [3]),
        STEP,
    )
    assert lives.peaks_after(trace, 30)["freed"] == 30


def test_what_is_kept_has_its_whole_size_with_half_a_batch(tmp_path):
    trace = written(
        tmp_path,
        ("aten::mm", [1], [3], []),
        ("aten::mm", [1, 3], [2], [3]),
        STEP,
    )
    assert lives.peaks_after(trace, 30)["half"] == 25


def test_gradients_have_their_whole_size_with_half_a_batch(tmp_path):
    """Also where they die behind the optimizer's last op."""
    trace = written(
        tmp_path,
        ("aten::mm", [1], [2], []),
        ("aten::_foreach_add_", [1, 2], [], [2]),
    )
    assert lives.peaks_after(trace, 20)["half"] == 20


LAYERS = """
import torch
from torch import nn
layers = (m for _ in range(6) for m in (nn.Linear(512, 512), nn.ReLU()))
net = nn.Sequential(*layers).to("cuda")
optimizer = torch.optim.{optimizer}
for step in range(9):
    {before}
    loss = net(torch.ones({rows}, 512, device="cuda")).sum()
    {behind}
    loss.backward()
    optimizer.step()
"""
USUAL = {
    "optimizer": "AdamW(net.parameters())",
    "before": "optimizer.zero_grad()",
    "rows": 2048,
    "behind": "",
}
MOMENTUM = "net.parameters(), momentum=0.9, foreach=False"
IN_BFLOAT16 = """optimizer.zero_grad()
    for each in net.parameters():
        optimizer.state[each].setdefault(
            "momentum_buffer", torch.zeros_like(each, dtype=torch.bfloat16))"""
CHANGES = {
    "fused": (
        {"rows": 16},
        {"rows": 16, "optimizer": "AdamW(net.parameters(), fused=True)"},
    ),
    "freed": ({"before": "optimizer.zero_grad(set_to_none=False)"}, {}),
    "late": ({"before": "", "behind": "optimizer.zero_grad()"}, {}),
    "half": ({}, {"rows": 1024}),
    "states": (
        {"rows": 16, "optimizer": f"SGD({MOMENTUM})"},
        {"rows": 16, "optimizer": f"SGD({MOMENTUM})", "before": IN_BFLOAT16},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_does_what_was_said(tmp_path, monkeypatch, name):
    """The script that has it is run too."""
    monkeypatch.chdir(tmp_path)
    before, after = (LAYERS.format(**USUAL | each) for each in CHANGES[name])
    pathlib.Path("train.py").write_text(before)
    budget = "8MiB" if name == "states" else "16MiB"
    done = run_plan("--budget", budget, "--json", "plan.json", "train.py")
    begin = {
        "fused": "fused=True for AdamW",
        "half": "half as many",
        "states": "states of SGD in bfloat16",
    }
    assert f"change     {begin.get(name, 'zero_grad()')}" in done.stdout
    figures = json.loads(pathlib.Path("plan.json").read_text())
    said = figures["peaks_after"]["freed" if name == "late" else name]
    run = run_text(after, tmp_path / "run", steps=4)
    peak = run["points"][0]["peak_logical_bytes"]
    assert said == pytest.approx(peak, rel=0.02)
    assert said < 0.95 * figures["peak_bytes"]


@pytest.mark.slow
def test_what_cannot_be_fused_is_not_told_to_be(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"rows": 16, "optimizer": "NAdam(net.parameters())"}
    pathlib.Path("train.py").write_text(LAYERS.format(**USUAL | given))
    done = run_plan("--budget", "16MiB", "train.py")
    assert "yes, by swapping" in done.stdout
    assert "fused=True" not in done.stdout
