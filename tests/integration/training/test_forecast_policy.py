"""The forecast policy on whole trainings, on the cpu runtime."""

import json

import pytest
from support import ROOT, needs_testing

pytestmark = needs_testing

_TESTS = ROOT / "tests"

_PRELUDE = f"""
import sys
sys.path[:0] = {[str(_TESTS / "integration"), str(_TESTS)]!r}
import json, os, time
import torch
import torch_chameleon
from torch_chameleon import _C, _testing, config
from trainings import *

@training
def longer(device):
    model = gpt(device)
    return fit(model, adamw(model), text(8), device, token_loss)
"""


def result_of(fresh, script):
    """What the script prints last, in a process of its own."""
    return json.loads(fresh(_PRELUDE + script).splitlines()[-1])


_ADVERSARIES = {
    1.25: "copies=reordered,compute_delay=3,poison=1,seed=5",
    2: "copies=on_await,compute_delay=4,poison=1",
    4: "copies=late,seed=7",
}


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["forecast", "lru"])
@pytest.mark.parametrize("k", _ADVERSARIES)
def test_bits_under_adversarial_copies(policy, k, fresh):
    """Eight steps: the later ones follow a plan, whatever copies do."""
    different, ahead = result_of(
        fresh,
        f"""
_testing.set_cpu_adversary({_ADVERSARIES[k]!r})
config.policy = {policy!r}
with budget(budget_for("longer", {k})):
    results = TRAININGS["longer"]("chameleon")
    ahead = torch_chameleon.swap_stats()["prefetched_bytes"]
_C.check_invariants(0, 3)
print(json.dumps([differences("longer", results), ahead]))
""",
    )
    assert different == []
    assert (ahead > 0) == (policy == "forecast")


# ---- op-time waits for bytes -------------------------------------------------

_DEMO = """
from torch_chameleon.demo.data import batches, standard_library
from torch_chameleon.demo.model import GPT, Shape
from torch.nn import functional as F

SHAPE = Shape(layers=6, width=192, heads=6, context=64, batch=8)

# The demo's loop. Returns figures of the last steps.
def demo(steps, of_last):
    torch.manual_seed(0)
    model = GPT(SHAPE).to("chameleon")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    data = batches(standard_library(), SHAPE, 0)
    for step in range(steps):
        if step == steps - of_last:
            torch_chameleon.reset_swap_stats()
        x, y = (part.to("chameleon") for part in next(data))
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        loss.item()
        del loss
    return torch_chameleon.swap_stats()
"""


@pytest.mark.slow
@pytest.mark.parametrize("k", [2, 4])
def test_faults_are_few_after_warm_up(k, fresh, capsys):
    figures = result_of(
        fresh,
        _DEMO
        + f"""
config.hbm_budget = 1 << 30
peak = demo(2, 2)["peak_logical_bytes"]
config.hbm_budget = int(peak / {k})
figures = {{}}
for policy in ("lru", "forecast"):
    config.policy = policy
    figures[policy] = demo(12, 5)
print(json.dumps(figures))
""",
    )
    lru, forecast = figures["lru"], figures["forecast"]
    with capsys.disabled():
        for name, row in figures.items():
            shown = {
                key: row[key]
                for key in (
                    "faults",
                    "evictions",
                    "clean_evictions",
                    "bytes_in",
                    "bytes_out",
                    "prefetched_bytes",
                    "prefetch_hits",
                    "compactions",
                    "ops",
                )
            }
            print(f"\nk={k} {name}: {shown}")
    assert lru["faults"] > 100
    assert forecast["faults"] <= 0.05 * lru["faults"]


# ---- the planner costs the op side nothing it could wait for -----------------


@pytest.mark.slow
def test_ops_never_wait_for_the_planner(fresh, capsys):
    costs = result_of(
        fresh,
        _DEMO
        + """
config.policy = "forecast"
config.hbm_budget = 1 << 30
peak = demo(2, 2)["peak_logical_bytes"]
for k in (2, 3, 2.5, 1.5, 2): # each is planned for anew, while ops run
    config.hbm_budget = int(peak / k)
    demo(5, 1)
print(json.dumps(_testing.forecast_costs()))
""",
    )
    with capsys.disabled():
        print(f"\n{costs}")
    assert costs["plans_made"] >= 4
    assert costs["lock_waits"] == 0


@pytest.mark.slow
def test_history_and_plan_are_small(fresh, capsys):
    costs = result_of(
        fresh,
        _DEMO
        + """
config.policy = "forecast"
config.hbm_budget = 1 << 30
config.hbm_budget = demo(2, 2)["peak_logical_bytes"] // 2
demo(12, 1)
print(json.dumps(_testing.forecast_costs()))
""",
    )
    with capsys.disabled():
        print(f"\n{costs}")
    assert costs["plan_bytes"] > 0
    assert costs["path_bytes"] + costs["plan_bytes"] <= 256 * costs["ops"]
