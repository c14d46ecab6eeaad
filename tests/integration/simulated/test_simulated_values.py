"""What a simulated device knows of values that it does not have."""

import json
import os
import subprocess
import sys

import pytest

_PRELUDE = """
import json, sys, warnings
import torch, torch_chameleon
from torch.nn import functional as F
torch_chameleon.config.physical_device = "simulated"
warnings.simplefilter("ignore")
torch.set_default_device("chameleon")
tokens, k, experts = 64, 2, 8
x = torch.randn(tokens, 4)
scores = torch.randn(tokens, experts)
labels = torch.randint(10, (50,))
w = torch.randn(tokens, 4, requires_grad=True)
w[scores.argmax(-1) == 1].sum().backward()
"""
_LOOP = """
for line in sys.stdin:
    names = dict(globals())
    try:
        found = eval(json.loads(line), names)
        if isinstance(found, torch.Tensor): found = list(found.shape)
    except Exception as error:
        found = repr(error)
    print(json.dumps(found), flush=True)
"""


@pytest.fixture(scope="module")
def simulated():
    """Gives the value of an expression on a simulated H200; of a tensor its
    shape."""
    with subprocess.Popen(
        [sys.executable, "-c", _PRELUDE + _LOOP],
        env={**os.environ, "CHAMELEON_PHYSICAL_DEVICE": "simulated"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:

        def value(expression):
            process.stdin.write(json.dumps(expression) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield value
        process.stdin.close()
        assert process.wait() == 0


TOP = "(top := scores.topk(k).indices)"
ONE_HOT = f"(hot := F.one_hot({TOP}, experts))"


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        # 64 tokens, 2 of 8 experts each: 16 for each expert.
        (f"torch.where({TOP} == 3)[0]", [16]),
        (f"torch.where({TOP}.view(-1) == 3)[0]", [16]),
        (f"x[({TOP} == 3).any(-1)]", [16, 4]),
        (f"(x.repeat(2, 1)[({TOP} == 3).view(-1)])", [16, 4]),
        (f"x.masked_select(({TOP} == 3).any(-1, keepdim=True))", [64]),
        ("(scores.argmax(-1) == 0).nonzero()", [8, 1]),
        ("(scores.softmax(-1).multinomial(2) == 0).nonzero()", [16, 2]),
        ("(scores.max(-1).indices == 0).nonzero()", [8, 1]),
        (f"{ONE_HOT}[..., 5].nonzero()", [16, 2]),
        # As Mixtral does it.
        (
            f"torch.where({ONE_HOT}.permute(2, 1, 0)[torch.tensor([5])]"
            ".squeeze(0))[0]",
            [16],
        ),
        (f"torch.greater({ONE_HOT}.sum((0, 1)), 0).nonzero()", [8, 1]),
        (f"{TOP}.view(-1).bincount(minlength=8).tolist()", [16] * 8),
        (f"{TOP}.view(-1).bincount().tolist()", [16] * 8),
        (f"{ONE_HOT}.sum((0, 1)).cpu().tolist()", [16] * 8),
        (f"{ONE_HOT}.sum((0, 1))[3].item()", 16),
        (f"{TOP}.view(-1).bincount().cumsum(0).tolist()[::4]", [16, 80]),
        (f"{TOP}.view(-1).bincount().max().item()", 16),
        (f"({TOP} == 3).sum().item()", 16),
        (f"torch.unique({TOP})", [8]),
        (f"torch.unique({TOP}, return_counts=True)[1].tolist()", [16] * 8),
        (f"torch.repeat_interleave({TOP}.view(-1).bincount())", [128]),
        (
            f"torch.zeros_like(scores).scatter_(1, {TOP}, 1.0)[:, 2].nonzero()",
            [16, 1],
        ),
        # Those do not divide: the first ones have one more.
        ("torch.randn(10, 4).argmax(-1).bincount().tolist()", [3, 3, 2, 2]),
        ("(torch.randn(10, 4).argmax(-1) == 0).nonzero()", [3, 1]),
        # Other masks.
        ("x[torch.isfinite(x)]", [256]),
        ("x[~torch.isnan(x)]", [256]),
        ("x[torch.isnan(x) | torch.isinf(x)]", [0]),
        ("(torch.rand(1000) < 0.25).nonzero()", [250, 1]),
        ("torch.empty(1000).bernoulli_(0.125).bool().nonzero()", [125, 1]),
        ("torch.bernoulli(torch.rand(1000)).bool().nonzero()", [500, 1]),
        (
            "(torch.rand(1000) < 0.25).float().bernoulli().bool().nonzero()",
            [250, 1],
        ),
        ("(torch.randperm(100) < 25).nonzero()", [25, 1]),
        ("x[torch.randperm(64)[:10]]", [10, 4]),
        (f"torch.unique({TOP}.view(-1), dim=0)", [8]),
        (f"torch.unique({TOP}, dim=0, return_counts=True)[1].sum().item()", 64),
        (
            f"(torch.unique({TOP}, return_inverse=True)[1] == 3).nonzero()",
            [16, 2],
        ),
        ("labels[labels == 3]", [5]),
        ("labels[labels != -100]", [50]),
        (
            "torch.tensor([True, False, True], device='cpu').to('chameleon')"
            ".nonzero()",
            [2, 1],
        ),
        ("torch.ones(6, dtype=torch.bool).nonzero()", [6, 1]),
        # Who writes it, or a part of it, makes it another one.
        (
            "(m := torch.zeros(6, dtype=torch.bool), m[:2].logical_not_(), "
            "m.nonzero().shape[0])[-1]",
            6,
        ),
        (
            "(m := torch.ones(6, dtype=torch.bool), m.logical_not_(), "
            "m.nonzero().shape[0])[-1]",
            0,
        ),
        (
            "(m := torch.zeros(6, dtype=torch.bool), m.__setitem__(2, True), "
            "m.nonzero().shape[0])[-1]",
            6,
        ),
    ],
)
def test_sizes(simulated, expression, found):
    assert simulated(expression) == found


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("bool(torch.isfinite(x).all())", True),
        ("bool(torch.isnan(x).any())", False),
        ("bool((x != x).any())", False),
        ("bool((x.abs() == float('inf')).any())", False),
        ("bool((x == x).all())", True),
        ("torch.isfinite(x).all().item()", True),
        ("torch.isfinite(x).all().cpu().tolist()", True),
        ("bool(~torch.isfinite(x.sum()))", False),
        ("torch.allclose(x, x)", True),
        ("torch.equal(x, x.clone())", True),
        ("bool((labels < 10).all())", True),
        ("bool((labels >= 0).all())", True),
        ("bool((labels > 9).any())", False),
        ("labels.max().item()", 9),
        ("labels.min().item()", 0),
        ("(labels == 3).max().item()", True),
        ("(labels == 3).min().item()", False),
        ("labels.bincount().max().item()", 5),
        ("torch.randn(10, 4).argmax(-1).bincount().min().item()", 2),
        ("torch.randperm(100).max().item()", 99),
        ("bool(labels.max() < 10)", True),
        ("bool(labels.max() == 9)", True),
        ("bool((x > 0).all())", False),  # nobody knows
        ("x.sum().item()", 0),
    ],
)
def test_reads(simulated, expression, found):
    assert simulated(expression) == found


def test_gradients_have_the_size_of_what_was_selected(simulated):
    assert simulated("w.grad") == [64, 4]


def test_the_share_of_what_is_not_known(simulated):
    with_share = (
        "(torch_chameleon.config.__setattr__('simulated_share', {}), "
        "list(x[x > 0].shape) + list(torch.unique(x).shape) + "
        "list(torch.where(scores.argmax(-1) == 3)[0].shape))[1]"
    )
    assert simulated(with_share.format(0.25)) == [64, 64, 8]
    assert simulated(with_share.format(1)) == [256, 256, 8]
    assert "simulated_share" in simulated(with_share.format(0))
