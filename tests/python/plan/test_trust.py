"""How far modelled times can be trusted: the file, kinds and sentences."""

import json
import subprocess
import sys

import measured_trust
import pytest
import torch
from benchmark_trainings import TRAININGS
from torch_chameleon.plan import kinds
from torch_chameleon.plan.trust import data, trust

LONG_NS = 10 * kinds.HOST_NS_AN_OP
DENSE = {"grouped": 0.0, "channels_last": 0.0, "images": 1.0}
DEPTHWISE = DENSE | {"grouped": 0.9}


@pytest.fixture
def trace(tmp_path):
    """Makes a trace of ops, each given with its time."""

    def written(**times):
        file = tmp_path / "trace.jsonl"
        rows = [{"trace": 1}, {"step": 1}]
        rows += [
            {"op": f"aten::{name}", "dur_ns": time}
            for name, time in times.items()
        ]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(file)

    return written


def test_transformers_multiply_and_attend(trace):
    flash = {"mm": LONG_NS, "_scaled_dot_product_flash_attention": LONG_NS}
    assert kinds.kind_of(trace(**flash), None) == "transformer"
    written_out = {"bmm": LONG_NS, "_softmax": LONG_NS, "mm": LONG_NS}
    assert kinds.kind_of(trace(**written_out), DENSE) == "transformer"


@pytest.mark.parametrize(
    ("convolutions", "kind"),
    [
        (DENSE, "dense_cnn_channels_first"),
        (DENSE | {"channels_last": 1.0}, "dense_cnn_channels_last"),
        (DENSE | {"grouped": 0.2}, "grouped_cnn"),
        (None, None),  # no module made them
    ],
)
def test_kinds_of_cnn(trace, convolutions, kind):
    step = trace(_convolution=LONG_NS, convolution_backward=LONG_NS, mm=1)
    assert kinds.kind_of(step, convolutions) == kind


def test_products_between_depthwise_convolutions(trace):
    """As in ConvNeXt; over sequences, as in Mamba, it is something else."""
    times = {"addmm": 9 * LONG_NS, "convolution": LONG_NS}
    step = trace(**times)
    assert kinds.kind_of(step, DEPTHWISE) == "depthwise_and_products"
    assert kinds.kind_of(step, DENSE) is None
    assert kinds.kind_of(step, DEPTHWISE | {"images": 0.0}) is None
    attends = trace(**times, _efficient_attention=LONG_NS)
    assert kinds.kind_of(attends, DEPTHWISE) == "transformer"


def test_kinds_that_were_not_measured(trace):
    assert kinds.kind_of(trace(mm=LONG_NS), None) is None  # layers alone
    most_is_else = trace(mm=LONG_NS, _softmax=1, bmm=1, sort=9 * LONG_NS)
    assert kinds.kind_of(most_is_else, None) is None


def test_where_the_host_is_slower(trace):
    step = trace(mm=3 * kinds.HOST_NS_AN_OP, relu=3000, add=3000, sub=3000)
    assert kinds.kind_of(step, None) == "small"


@pytest.fixture
def convolutions():
    found = kinds.Convolutions()
    yield found
    found.close()


def test_convolutions_are_seen(convolutions):
    image = torch.empty(2, 8, 6, 6)
    dense, depthwise = (
        torch.nn.Conv2d(8, 8, 3, padding=1, groups=groups).to("chameleon")
        for groups in (1, 8)
    )
    dense(image.to("chameleon"))
    assert convolutions.shares() == DENSE
    depthwise(image.to("chameleon"))
    dense(image.to("chameleon", memory_format=torch.channels_last))
    dense(image.to("chameleon"))
    shares = {"grouped": 0.25, "channels_last": 0.25, "images": 1.0}
    assert convolutions.shares() == shares


def test_the_cpu_s_convolutions_do_not_count(convolutions):
    torch.nn.Conv2d(1, 1, 1)(torch.ones(1, 1, 2, 2))
    assert convolutions.shares() is None


def test_a_card_s_own_ratio_takes_the_published_one_s_place():
    published = trust("dense_cnn_channels_first", "h200")
    assert published["on_this_card"]["of"] == "ResNet-50"
    own = trust("dense_cnn_channels_first", "h100")
    assert own["on_this_card"] in data()["measured"]
    assert own["on_any_card"] == published["on_any_card"]
    elsewhere = trust("dense_cnn_channels_first", "t4")
    assert elsewhere["on_this_card"] is None
    assert "on this card" not in elsewhere["sentence"]


def test_what_the_sentence_says(monkeypatch):
    row = {"kind": "transformer", "gpu": None, "count": 76}
    rows = {
        "published": [row | {"ratio": 0.86, "spread": 1.18}],
        "measured": [row | {"ratio": 0.9, "spread": 1.05, "gpu": "h100"}],
    }
    monkeypatch.setattr(
        "torch_chameleon.plan.trust.data", lambda: data() | rows
    )
    assert trust("transformer", "h100")["sentence"] == (
        "are modelled; for transformers they were 0.86 of what was measured "
        "(76 published figures, spread 1.18); on this card 0.90 (76 measured "
        "figures, spread 1.05)"
    )
    assert trust(None, "h100")["sentence"] == (
        "are modelled; this training is of a kind that was not measured"
    )


def test_every_kind_has_a_published_row():
    rows = [row for row in data()["published"] if row["gpu"] is None]
    assert sorted(row["kind"] for row in rows) == sorted(data()["kinds"])
    for row in data()["published"] + data()["measured"]:
        assert row["kind"] in data()["kinds"]
        assert row["source"]


def test_measured_rows_are_the_results():
    assert data()["measured"] == measured_trust.measured(), (
        "python tests/benchmarks/training/measured_trust.py writes them"
    )
    assert measured_trust.KINDS.keys() == TRAININGS.keys()
    assert set(measured_trust.KINDS.values()) <= {*data()["kinds"], None}


CNN = """
import torch
from torch import nn
net = nn.Sequential(nn.Conv2d(3, 256, 3), nn.ReLU(), nn.Conv2d(256, 256, 3))
net = net.to("cuda", memory_format=torch.channels_last)
optimizer = torch.optim.SGD(net.parameters())
image = torch.ones(64, 3, 128, 128, device="cuda")
image = image.to(memory_format=torch.channels_last)
for step in range(9):
    optimizer.zero_grad()
    net(image).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_plan_says_it(tmp_path):
    script, figures = tmp_path / "train.py", tmp_path / "plan.json"
    script.write_text(CNN)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch_chameleon", "plan"),
            *("--gpu", "rtx3090", "--json", figures, script),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = trust("dense_cnn_channels_last", "rtx3090")
    assert json.loads(figures.read_text())["trust"] == expected
    assert f"  times      {expected['sentence']}\n" in done.stdout
