"""PyTorch's operator databases, entry by entry.

The binary, unary, reduction, special, linalg, fft, masked and signal databases
are part of op_db.
"""

import pytest
import torch
from torch.testing._internal import common_methods_invocations as databases
from torch.testing._internal.common_dtype import all_types_and_complex_and

from conformance.databases import op_checks
from conformance.harness import selection
from conformance.harness.known_differences import UNINITIALISED
from conformance.harness.pagers import PAGERS
from conformance.harness.suite import Suite

SAMPLED_CHECKS, SAMPLED_DTYPES, SAMPLED_ACTIONS = 3, 1, 3

FOREACH = (
    databases.foreach_unary_op_db
    + databases.foreach_binary_op_db
    + databases.foreach_pointwise_op_db
    + databases.foreach_reduce_op_db
    + databases.foreach_other_op_db
)
DTYPES = all_types_and_complex_and(
    *(torch.bool, torch.half, torch.bfloat16, torch.chalf, torch.uint16),
    torch.float8_e4m3fn,
)
SUITES = {
    "ops": (databases.op_db, op_checks.CHECKS),
    "foreach": (FOREACH, op_checks.FOREACH_CHECKS),
    "refs": (databases.python_ref_db, op_checks.REFERENCE_CHECKS),
}
ENTRIES = {
    f"{suite}-{op.formatted_name}": (suite, op)
    for suite, (entries, _) in SUITES.items()
    for op in entries
}


def cases(suite, op):
    """(check, dtype) of an entry; error inputs choose their own dtypes."""
    dtypes = sorted(op.supported_dtypes("cpu"), key=str)
    others = sorted(set(DTYPES).difference(dtypes), key=str)
    for check in SUITES[suite][1]:
        if check == "errors":
            yield check, "own"
        elif check == "refused":
            yield from ((check, dtype) for dtype in others)
        else:
            yield from ((check, dtype) for dtype in dtypes)


def run(harness, op, check, dtype, pagers, actions, **options):
    harness.case(
        op.formatted_name,
        check,
        dtype,
        actions,
        pagers,
        values=op.name.removeprefix("_refs.") not in UNINITIALISED,
        **options,
    )


@pytest.mark.sample
@pytest.mark.parametrize("name", ENTRIES)
def test_sample_of_op(name):
    """For each entry a few checks, each with a dtype and a pager."""
    suite, op = ENTRIES[name]
    harness = Suite(suite)
    everything = list(cases(suite, op))
    checks = {check for check, _ in everything}
    for check in selection.choose(sorted(checks), SAMPLED_CHECKS, name):
        mine = [case for case in everything if case[0] == check]
        for _, dtype in selection.choose(mine, SAMPLED_DTYPES, name):
            actions = SUITES[suite][1][check](op, dtype)
            run(
                harness,
                op,
                check,
                dtype,
                selection.choose(PAGERS, 1, name, check),
                selection.few(actions, SAMPLED_ACTIONS, name, check),
                complete=False,
            )
    harness.verify()


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
def test_op(name):
    """Every check, dtype, pager and sample."""
    suite, op = ENTRIES[name]
    harness, most = Suite(suite), selection.most_samples()
    for check, dtype in cases(suite, op):
        actions = SUITES[suite][1][check](op, dtype)
        if most is not None:
            if check == "reference":
                continue  # most of the time is spent on making them
            actions = selection.few(actions, most, name, check, dtype)
        run(harness, op, check, dtype, PAGERS, actions, complete=most is None)
    harness.verify()
