"""Operators whose arguments have several dtypes: native's values or error.

Promotion takes other ways than one dtype does, to kernels that nothing else
asks for: ldexp with an integral exponent was one.
"""

import pytest
from torch.testing._internal.common_methods_invocations import op_db

from conformance import op_checks, selection
from conformance.dtype_mixes import dtype_mixes
from conformance.suite import Suite

ENTRIES = {op.formatted_name: op for op in op_db}
SAMPLED = 120


def run(op, samples, pagers):
    harness = Suite("dtype mixes")
    for check, function in {
        "forward": op,
        "inplace": op.inplace_variant,
    }.items():
        if function is None:
            continue
        actions = [
            op_checks.call(op, function, mixed, copies=check == "inplace")
            for mixed in dtype_mixes(op, samples)
        ]
        name = op.formatted_name
        harness.case(name, check, "several", actions, pagers, complete=False)
    harness.verify()


@pytest.mark.sample
@pytest.mark.parametrize(
    "name", selection.choose(sorted(ENTRIES), SAMPLED, "dtype mixes")
)
def test_some_mixes(name):
    run(ENTRIES[name], 1, ("never",))


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
def test_all_mixes(name):
    run(ENTRIES[name], 2, ("never", "all"))
