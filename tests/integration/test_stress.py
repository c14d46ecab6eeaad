"""Trainings leave the native bits whatever is evicted, and whenever."""

from pathlib import Path

import pytest
from torch_chameleon import _C
from trainings import TRAININGS, budget, budget_for, differences


@pytest.fixture
def stress():
    yield _C.set_stress
    _C.set_stress("never", 0)


@pytest.mark.parametrize("name", ["gpt_adamw", "lstm", "vit", "checkpointing"])
@pytest.mark.parametrize("mode", ["all", "random"])
def test_evictions_at_any_moment(name, mode, stress):
    size = budget_for(name, 1.25)
    stress(mode, 3)
    with budget(size):
        results = TRAININGS[name]("chameleon")
    assert differences(name, results) == []


ADVERSARIES = [
    "copies=late,seed=1",
    "copies=reordered,seed=2",
    "copies=on_await",
    "compute_delay=4",
    "copies=reordered,compute_delay=3,poison=1,seed=3",
]


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_adversarial_copies(adversary, fresh):
    """Copies that finish late, out of order or only when awaited."""
    here = Path(__file__).parent
    code = f"""
import sys
sys.path[:0] = {[str(here), str(here.parent)]!r}
import torch
import torch_chameleon
from torch_chameleon import _C
_C.set_cpu_adversary({adversary!r})
from trainings import *
with budget(budget_for("gpt_adamw", 3)):
    results = TRAININGS["gpt_adamw"]("chameleon")
_C.check_invariants(0, 2)
print(differences("gpt_adamw", results))
"""
    assert fresh(code).splitlines()[-1] == "[]"
