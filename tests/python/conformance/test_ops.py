"""op_db, entry by entry."""

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from conformance import op_checks, selection
from conformance.known_differences import UNINITIALISED
from conformance.pagers import PAGERS
from conformance.suite import Suite

ENTRIES = {op.formatted_name: op for op in op_db}
SAMPLED_CHECKS, SAMPLED_ACTIONS = 3, 4


def first(actions, count):
    for _, action in zip(range(count), actions, strict=False):
        yield action


@pytest.mark.parametrize("name", ENTRIES)
def test_sample_of_op(name):
    """For each entry a few checks, each with one dtype and one pager."""
    op, suite = ENTRIES[name], Suite("ops")
    dtypes = sorted(op.supported_dtypes("cpu"), key=str)
    for check in selection.choose(op_checks.CHECKS, SAMPLED_CHECKS, name):
        for dtype in selection.choose(dtypes, 1, name, check):
            suite.case(
                op.formatted_name,
                check,
                dtype,
                first(op_checks.CHECKS[check](op, dtype), SAMPLED_ACTIONS),
                selection.choose(PAGERS, 1, name, check),
                values=op.name not in UNINITIALISED,
                complete=False,
            )
    suite.verify()


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
def test_op(name):
    """Every check, dtype, pager and sample."""
    op, suite = ENTRIES[name], Suite("ops")
    for dtype in sorted(op.supported_dtypes("cpu"), key=str):
        for check, actions in op_checks.CHECKS.items():
            if check == "errors":
                continue
            suite.case(
                op.formatted_name,
                check,
                dtype,
                actions(op, dtype),
                values=op.name not in UNINITIALISED,
            )
    suite.case(
        op.formatted_name, "errors", "own", op_checks.errors(op, torch.float32)
    )
    suite.verify()
