"""Trainings leave the native bits whatever is evicted, and whenever."""

import pytest
from support import ADVERSARIES, ROOT, evicting, needs_testing
from trainings import TRAININGS, budget, budget_for, differences


@pytest.mark.parametrize("name", ["gpt_adamw", "lstm", "vit", "checkpointing"])
@pytest.mark.parametrize("mode", ["all", "random"])
def test_evictions_at_any_moment(name, mode):
    size = budget_for(name, 1.25)
    with evicting(mode, 3), budget(size):
        results = TRAININGS[name]("chameleon")
    assert differences(name, results) == []


_WORST = ADVERSARIES[-1]  # late, out of order and slow at once


@needs_testing
@pytest.mark.parametrize(
    "adversary",
    [
        _WORST,
        *(pytest.param(a, marks=pytest.mark.slow) for a in ADVERSARIES[:-1]),
    ],
)
def test_adversarial_copies(adversary, fresh):
    """Copies that finish late, out of order or only when awaited."""
    tests = ROOT / "tests"
    code = f"""
import sys
sys.path[:0] = {[str(tests / "integration"), str(tests)]!r}
import torch
import torch_chameleon
from torch_chameleon import _C, _testing
_testing.set_cpu_adversary({adversary!r})
from trainings import *
with budget(budget_for("gpt_adamw", 3)):
    results = TRAININGS["gpt_adamw"]("chameleon")
_C.check_invariants(0, 2)
print(differences("gpt_adamw", results))
"""
    assert fresh(code).splitlines()[-1] == "[]"
