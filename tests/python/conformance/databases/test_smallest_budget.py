"""From the smallest budget that the out-of-memory text names, everything runs.

Each action begins with hardly any memory and is given what its message asks
for, until it runs: as with ample memory (which other tests compare with
native), and once more in the same budget. So what needs no more than the budget
is not refused, wherever its operands lie. Where a kernel allocates several
times, it is only known what it asked for so far: "at least".
"""

import json
import re

import pytest
import torch
import torch_chameleon
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db

from conformance.databases import module_checks, op_checks
from conformance.harness import selection
from conformance.harness.compare import difference, observe
from conformance.harness.known_differences import UNINITIALISED

OPS = {
    f"op-{op.formatted_name}": op for op in op_db if op.supported_dtypes("cpu")
}
MODULES = {f"module-{info.formatted_name}": info for info in module_db}
ENTRIES = OPS | MODULES
ONE_IN = 16  # entries, in the default run
# LAPACK's least squares vary with the operands' addresses, natively too.
VARYING = ("linalg_lstsq", "linalg_lstsq_grad_oriented")
ADVICE = re.compile(r"hbm_budget to at least ([\d.]+ \w+)")


def sampled():
    return [n for n in ENTRIES if selection.hashed("budget", n) % ONE_IN == 0]


def actions_of(name):
    """Forward and backward of an entry, with a few of its samples each."""
    if name in MODULES:
        yield from selection.few(
            module_checks.train(MODULES[name], torch.float32), 2, name
        )
        return
    op = OPS[name]
    dtypes = op.supported_dtypes("cpu")
    dtype = torch.float32 if torch.float32 in dtypes else min(dtypes, key=str)
    for check in ("forward", "inplace", "backward"):
        actions = op_checks.CHECKS[check](op, dtype)
        yield from selection.few(actions, 2, name, check)


def within(budget, action):
    with torch_chameleon.config.patch(hbm_budget=budget, oversubscription=1e6):
        return observe(action, "chameleon"), torch_chameleon.config.hbm_budget


def as_advised(action):
    """What the action leaves in the budget that is asked for, and that."""
    budget = named = 512
    while True:
        try:
            return within(named, action)
        except torch.OutOfMemoryError as error:
            text = str(error)
        named = ADVICE.search(text)[1]
        with torch_chameleon.config.patch(hbm_budget=named):
            more = torch_chameleon.config.hbm_budget
        assert more > budget, (text, budget)
        budget = more


def check(name):
    """The budgets of the entry's actions, in their order."""
    budgets = []
    values = name.removeprefix("op-") not in (*UNINITIALISED, *VARYING)
    for action in actions_of(name):
        ample = observe(action, "chameleon")
        outcome, budget = as_advised(action)
        assert not difference(ample, outcome, values), name
        again, _ = within(budget, action)
        assert not difference(ample, again, values), name
        budgets.append(budget)
    return budgets


@pytest.mark.sample
@pytest.mark.parametrize("name", sampled())
def test_sample_from_the_smallest_budget(name):
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
def test_from_the_smallest_budget(name):
    check(name)


_FIRST = """
import json, sys
sys.path.insert(0, {tests!r})
sys.path.insert(0, {here!r})
import torch_chameleon
from conformance.databases import test_smallest_budget
for name, budgets in json.loads({budgets!r}).items():
    actions = test_smallest_budget.actions_of(name)
    test_smallest_budget.within(budgets[0], next(actions))
"""


@pytest.mark.slow
def test_nothing_has_to_be_learned_for_it(fresh, pytestconfig):
    """The same budgets in a process that has seen none of the ops."""
    budgets = {name: check(name) for name in sampled()}
    tests = pytestconfig.rootpath / "tests"
    fresh(
        _FIRST.format(
            tests=str(tests),
            here=str(tests / "python"),
            budgets=json.dumps({n: b for n, b in budgets.items() if b}),
        )
    )
