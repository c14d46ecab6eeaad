"""The same ops and the same kernels as native, in the same order.

Bit equality says that results agree; this says that they agree for the right
reason: no composite takes another branch because of the device's name, no
kernel another path because its operands are twins.
"""

import warnings

import pytest
import torch

from conformance.parity_cases import (
    dtype_of,
    module_cases,
    module_db,
    op_cases,
    op_entries,
)
from conformance.recorded import kernels_of, ops_of, renamed

PARTS = 8
SAMPLES = {"ops": 3, "kernels": 2}  # of each entry, by default
DTYPES = (torch.bfloat16, torch.complex64, torch.int64, torch.bool)


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def differs(native, ours):
    """Compares (calls, error) pairs; None, or what to print."""
    calls, error = native
    our_calls, our_error = ours
    if type(error) is not type(our_error):
        return f"native raises {error!r}, chameleon {our_error!r}"
    for one, other in zip(calls, our_calls, strict=False):
        if one != other:
            return f"native calls {one}, chameleon {other}"
    if len(calls) != len(our_calls):
        longer = max(calls, our_calls, key=len)
        return f"one more call: {longer[min(len(calls), len(our_calls))]}"
    return None


def compare_ops(cases):
    different = {}
    for case in cases:
        what = differs(
            ops_of(case.on("cpu")),
            ops_of(case.on("chameleon")),
        )
        if what is not None:
            different.setdefault(case.name, what)
    return different


def compare_kernels(cases):
    runs = [
        (lambda case=case, device=device: case.on(device))
        for case in cases
        for device in ("cpu", "chameleon")
    ]
    recorded = kernels_of(runs)
    different = {}
    for case, native, ours in zip(
        cases, recorded[::2], recorded[1::2], strict=True
    ):
        what = differs(native, (renamed(ours[0]), ours[1]))
        if what is not None:
            different.setdefault(case.name, what)
    return different


def assert_same(level, cases):
    different = COMPARISONS[level](cases)
    assert not different, "\n".join(
        f"{name}: {what}" for name, what in different.items()
    )


COMPARISONS = {"ops": compare_ops, "kernels": compare_kernels}


def sampled_ops(part, limit=None):
    return [
        case
        for op in op_entries()[part::PARTS]
        for case in op_cases(op, dtype_of(op), limit)
    ]


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("level", COMPARISONS)
def test_operators(level, part):
    assert_same(level, sampled_ops(part, SAMPLES[level]))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("level", COMPARISONS)
def test_operators_all_samples(level, part):
    assert_same(level, sampled_ops(part))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operators_other_dtypes(dtype, part):
    cases = [
        case
        for op in op_entries()[part::PARTS]
        if dtype in op.dtypes
        for case in op_cases(op, dtype, SAMPLES["ops"])
    ]
    assert_same("ops", cases)


@pytest.mark.parametrize("level", COMPARISONS)
def test_modules(level):
    cases = [
        case
        for info in module_db
        for case in module_cases(info, torch.float32, SAMPLES[level])
    ]
    assert_same(level, cases)


@pytest.mark.slow
@pytest.mark.parametrize("level", COMPARISONS)
def test_modules_all_samples(level):
    for info in module_db:
        assert_same(level, module_cases(info, torch.float32))
