"""Steps that swapping makes slow are told of, on the simulated clock."""

import json

import pytest

TRAINING = """
import json, sys, warnings, torch, torch_chameleon
from torch_chameleon import config, profiler

config.physical_device = "simulated"
config.simulated_gpu = "rtx4090"
config.policy = {policy!r}
config.oversubscription = 8
marks, budget, limit, errors = {marks!r}, {budget}, {limit}, []
with torch.device("chameleon"):
    layers = [torch.nn.Linear(2048, 2048) for _ in range(16)]
    model = torch.nn.Sequential(*layers)
    x = torch.zeros(64, 2048)
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
config.max_slowdown = limit
config.step_marks = marks
config.hbm_budget = budget
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as caught:
    steps, figures = 0, []
    while steps < {steps}:
        try:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            torch.chameleon.synchronize()
            if marks == "manual":
                torch_chameleon.step()
            steps += 1
            if steps > 5:  # steps that are not marked are found by now
                figures.append(profiler.last_step())
                del figures[-1]["plan"]
        except torch_chameleon.SlowdownError as error:
            errors.append([steps, str(error)])
            torch_chameleon._C.check_invariants(0, 2)
            assert torch_chameleon.swap_stats()["pinned_bytes"] == 0
            config.max_slowdown = None
ours = [w for w in caught if "waiting for bytes" in str(w.message)]
print(json.dumps({{
    "warnings": [str(w.message) for w in ours],
    "kinds": [w.category.__name__ for w in ours],
    "errors": errors,
    "steps": figures,
    "peak": torch_chameleon.swap_stats()["peak_logical_bytes"],
}}))
"""
MIB = 1 << 20
PEAK = 1100 * MIB


MARKS = pytest.mark.parametrize(
    "marks", ["manual", "auto", pytest.param("off", marks=pytest.mark.slow)]
)


@pytest.fixture
def train(fresh):
    def run(budget, policy="lru", marks="manual", limit=None):
        steps = 120 if marks == "off" else 12
        code = TRAINING.format(
            policy=policy,
            marks=marks,
            budget=budget,
            limit=limit,
            steps=steps,
        )
        return json.loads(fresh(code).splitlines()[-1])

    return run


@MARKS
def test_one_warning_with_the_figures(train, marks):
    seen = train(PEAK // 4, marks=marks)
    assert seen["kinds"] == ["UserWarning"]
    said = seen["warnings"][0]
    step = next(  # three in a row, after five
        s
        for s in seen["steps"]
        if f" {s['duration_ns'] / 1e6:.4g} ms, " in said
        and f" {s['bound_ns'] / 1e6:.4g} ms at" in said
    )
    stall = step["stall_ns"] / step["duration_ns"]
    assert stall > 0.5
    factor = step["duration_ns"] / (step["duration_ns"] - step["stall_ns"])
    for words in (
        f"a step takes {step['duration_ns'] / 1e6:.4g} ms, {factor:.3g} times",
        f"At {seen['peak'] / (PEAK // 4):.3g} times the budget",
        f"{step['bytes_in'] / 2**30:.2f} GiB in",
        f"{step['bytes_out'] / 2**30:.2f} GiB out",
        f"{step['bound_ns'] / 1e6:.4g} ms at least",
        'config.policy = "forecast"',
    ):
        assert words in said


@pytest.mark.parametrize(
    "policy", [pytest.param("lru", marks=pytest.mark.slow), "forecast"]
)
def test_none_where_all_fits(train, policy):
    seen = train(2 * PEAK, policy)
    assert seen["warnings"] == []
    assert seen["steps"][-1]["stall_ns"] == 0


@MARKS
def test_the_limit_raises_one_typed_error(train, marks):
    seen = train(PEAK // 4, marks=marks, limit=1.5)
    [[steps, message]] = seen["errors"]
    # Five or, where none is marked, a hundred; and three in a row. From its
    # second step on an optimizer ends them; its updates, which run after that,
    # are the first ops of the step that tells.
    if marks == "off":
        assert 20 < steps <= 103
    else:
        assert steps == 8
    assert "(torch_chameleon.config.max_slowdown is 1.5.)" in message
    assert seen["warnings"] == []  # the error has told it


@pytest.mark.slow
def test_no_error_below_the_limit(train):
    assert train(PEAK // 4, limit=1000)["errors"] == []
