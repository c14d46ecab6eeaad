"""module_db, entry by entry."""

from itertools import islice

import pytest
import torch
from torch.testing._internal.common_modules import module_db

from conformance.databases import module_checks
from conformance.harness import selection
from conformance.harness.pagers import PAGERS
from conformance.harness.suite import Suite

ENTRIES = {info.formatted_name: info for info in module_db}
SAMPLED_CHECKS, SAMPLED_ACTIONS = 2, 3


@pytest.mark.sample
@pytest.mark.parametrize("name", ENTRIES)
def test_sample_of_module(name):
    """For each entry two checks, each with one dtype and one pager."""
    info, suite = ENTRIES[name], Suite("modules")
    for check in selection.choose(module_checks.CHECKS, SAMPLED_CHECKS, name):
        dtype = selection.choose(module_checks.DTYPES, 1, name, check)[0]
        suite.case(
            name,
            check,
            dtype,
            islice(module_checks.CHECKS[check](info, dtype), SAMPLED_ACTIONS),
            selection.choose(PAGERS, 1, name, check),
            complete=False,
        )
    suite.verify()


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
def test_module(name):
    """Every check, dtype, pager and sample."""
    info, suite = ENTRIES[name], Suite("modules")
    for dtype in module_checks.DTYPES:
        for check, actions in module_checks.CHECKS.items():
            suite.case(name, check, dtype, actions(info, dtype))
    if torch.complex64 in info.dtypes:
        for check in ("train", "evaluate"):
            actions = module_checks.CHECKS[check]
            suite.case(name, check, "complex64", actions(info, torch.complex64))
    suite.verify()
