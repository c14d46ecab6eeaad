"""Operands that do not go together: native's values, or native's error.

Promotion takes other ways than one dtype does, to kernels that nothing else
asks for: ldexp with an integral exponent was one. And where there is nothing to
do, as for an empty tensor, what native checks before is checked too.
"""

import pytest
from torch.testing._internal.common_methods_invocations import op_db

from conformance.databases import op_checks
from conformance.databases.changed_samples import (
    CASTS,
    EMPTIED,
    changed_samples,
)
from conformance.harness import selection
from conformance.harness.known_differences import UNINITIALISED
from conformance.harness.suite import Suite

# Natively they read past the end of an operand that is too small.
NATIVE_CRASHES = {
    *("lu_unpack", "native_batch_norm", "_native_batch_norm_legit"),
    *("_batch_norm_with_update", "_segment_reduce_offsets"),
}
ENTRIES = {
    op.formatted_name: op
    for op in op_db
    if op.formatted_name not in NATIVE_CRASHES
}
WITHOUT_VALUES = UNINITIALISED | {"resize_", "resize_as_"}
KINDS = {"mixed dtypes": (CASTS, 2), "an empty operand": (EMPTIED, 1)}
SAMPLED = 60


def run(kind, op, samples, pagers):
    harness = Suite(kind, known_as="ops")
    changes, least = KINDS[kind]
    for check, function in {
        "forward": op,
        "inplace": op.inplace_variant,
    }.items():
        if function is None:
            continue
        actions = [
            op_checks.call(op, function, sample, copies=check == "inplace")
            for sample in changed_samples(op, changes, samples, least)
        ]
        harness.case(
            op.formatted_name,
            check,
            "several",
            actions,
            pagers,
            values=op.name not in WITHOUT_VALUES,
            complete=False,
        )
    harness.verify()


@pytest.mark.sample
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind in KINDS
        for name in selection.choose(sorted(ENTRIES), SAMPLED, kind)
    ],
)
def test_some(kind, name):
    run(kind, ENTRIES[name], 1, ("never",))


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("kind", KINDS)
def test_all(kind, name):
    run(kind, ENTRIES[name], 3, ("never", "all"))
