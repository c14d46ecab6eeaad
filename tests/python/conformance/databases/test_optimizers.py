"""optim_db, entry by entry."""

from itertools import islice

import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db

from conformance.databases import optimizer_checks
from conformance.harness import selection
from conformance.harness.pagers import PAGERS
from conformance.harness.suite import Suite

ENTRIES = {info.name: info for info in optim_db}
SAMPLED_ACTIONS = 3


@pytest.mark.sample
@pytest.mark.parametrize("check", optimizer_checks.CHECKS)
@pytest.mark.parametrize("name", ENTRIES)
def test_sample_of_optimizer(name, check):
    """Every check with one dtype, one pager and a few hyperparameters."""
    info, suite = ENTRIES[name], Suite("optimizers")
    dtype = selection.choose(optimizer_checks.DTYPES, 1, name, check)[0]
    actions = list(optimizer_checks.CHECKS[check](info, dtype))
    chosen = selection.choose(range(len(actions)), SAMPLED_ACTIONS, name, check)
    suite.case(
        name,
        check,
        dtype,
        [actions[index] for index in chosen],
        selection.choose(PAGERS, 1, name, check),
        complete=False,
    )
    suite.verify()


@pytest.mark.slow
@pytest.mark.parametrize("check", optimizer_checks.CHECKS)
@pytest.mark.parametrize("name", ENTRIES)
def test_optimizer(name, check):
    """Every dtype, pager and hyperparameter."""
    info, suite = ENTRIES[name], Suite("optimizers")
    for dtype in optimizer_checks.DTYPES:
        if dtype.is_complex and not info.supports_complex:
            continue
        actions = optimizer_checks.CHECKS[check](info, dtype)
        suite.case(name, check, dtype, actions)
    suite.verify()


@pytest.mark.parametrize("name", ENTRIES)
def test_errors(name):
    suite = Suite("optimizers")
    actions = optimizer_checks.errors(ENTRIES[name], torch.float32)
    suite.case(name, "errors", "own", islice(actions, 100), ["never"])
    suite.verify()
