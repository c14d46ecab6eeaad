"""Every entry of PyTorch's operator databases, with its results made again.

Each op that may run again is recorded; what it made is dropped and comes back
by another run: bits, strides, aliasing and warnings as natively. So the table
of kernels/reruns/rerun_rules.cpp cannot rot: an op that does not repeat, or
does something else besides, is found here.
"""

import pytest
import torch
from torch_chameleon import _testing

from conformance.databases import op_checks
from conformance.databases.test_ops import SUITES, run
from conformance.harness import selection
from conformance.harness.pagers import DROPPING_PAGERS
from conformance.harness.suite import Suite

SUITE = "ops"
ENTRIES = {op.formatted_name: op for op in SUITES[SUITE][0]}
CHECKS = ("forward", "backward", "inplace", "out", "noncontiguous")


def cases(op):
    for check in CHECKS:
        if check not in op_checks.CHECKS:
            continue
        for dtype in sorted(op.supported_dtypes("cpu"), key=str):
            yield check, dtype


@pytest.mark.sample
@pytest.mark.parametrize("name", ENTRIES)
def test_sample_of_reruns(name):
    """For each entry two checks, each with a dtype and a way to drop."""
    op, harness = ENTRIES[name], Suite("reruns", known_as=SUITE)
    for check, dtype in selection.choose(list(cases(op)), 2, "rerun", name):
        actions = op_checks.CHECKS[check](op, dtype)
        run(
            harness,
            op,
            check,
            dtype,
            selection.choose(DROPPING_PAGERS, 1, "rerun", name, check),
            selection.few(actions, 2, "rerun", name, check),
            complete=False,
        )
    harness.verify()


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
def test_reruns(name):
    """Every check, dtype, way to drop and sample."""
    op, most = ENTRIES[name], selection.most_samples()
    harness = Suite("reruns", known_as=SUITE)
    for check, dtype in cases(op):
        actions = op_checks.CHECKS[check](op, dtype)
        if most is not None:
            actions = selection.few(actions, most, name, check, dtype)
        run(harness, op, check, dtype, DROPPING_PAGERS, actions, complete=False)
    harness.verify()


def test_much_runs_again():
    """The stress is one: most entries' results did come back by a re-run."""
    rules = dict(_testing.rerun_rules())
    torch.chameleon.init()
    assert sum(rule == "may" for rule in rules.values()) > len(rules) / 3
