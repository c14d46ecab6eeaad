"""The same ops and the same kernels as native, in the same order.

Bit equality says that results agree; this says that they agree for the right
reason: no composite takes another branch because of the device's name, no
kernel another path because its operands are alias tensors.
"""

import warnings

import pytest
import torch

from conformance.harness import counting
from conformance.harness.parity_cases import (
    dtype_of,
    module_cases,
    module_db,
    op_cases,
    op_entries,
)
from conformance.harness.recorded import kernels_of, ops_of, renamed

PARTS = 8
SAMPLES = {"ops": 3, "kernels": 2}  # of each entry, by default
DTYPES = (
    *(torch.bfloat16, torch.float16, torch.float64),
    *(torch.complex64, torch.int64, torch.uint8, torch.bool),
)


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
    """What differs in each case, or None."""
    return [
        differs(ops_of(case.on("cpu")), ops_of(case.on("chameleon")))
        for case in cases
    ]


def compare_kernels(cases):
    """What differs in each case, or None."""
    runs = [
        (lambda case=case, device=device: case.on(device))
        for case in cases
        for device in ("cpu", "chameleon")
    ]
    recorded = kernels_of(runs)
    return [
        differs(native, (renamed(ours[0]), ours[1]))
        for native, ours in zip(recorded[::2], recorded[1::2], strict=True)
    ]


COMPARISONS = {"ops": compare_ops, "kernels": compare_kernels}


def assert_same(level, cases):
    found = {}
    for case, what in zip(cases, COMPARISONS[level](cases), strict=True):
        found.setdefault((case.name, case.dtype), []).append(what)
    failed = []
    for (name, dtype), differences in found.items():
        different = [what for what in differences if what]
        failed += [f"{name} {dtype}: {what}" for what in different[:1]]
        counting.count(
            *(f"parity of {level}", str(dtype).removeprefix("torch.")),
            *("never", not different),
            samples=len(differences),
        )
    assert not failed, "\n".join(failed)


def cases_of(ops, dtype, limit):
    """Cases of a dtype, or of each op's one."""
    return [
        case
        for op in ops
        if dtype is None or dtype in op.supported_dtypes("cpu")
        for case in op_cases(op, dtype or dtype_of(op), limit)
    ]


@pytest.mark.sample
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("level", COMPARISONS)
def test_sample_of_operators(level, part):
    ops = op_entries(level)[part::PARTS]
    assert_same(level, cases_of(ops, None, SAMPLES[level]))


@pytest.mark.sample
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("level", COMPARISONS)
def test_sample_of_other_dtypes(level, dtype):
    """Every sixteenth op, other ones for each dtype."""
    ops = op_entries(level)[DTYPES.index(dtype) :: 16]
    assert_same(level, cases_of(ops, dtype, 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("level", "op"),
    [
        pytest.param(level, op, id=f"{level}-{op.formatted_name}")
        for level in COMPARISONS
        for op in op_entries(level)
    ],
)
def test_operator(level, op):
    """All samples in one dtype, a few in every other."""
    assert_same(level, cases_of([op], None, None))
    for dtype in DTYPES:
        assert_same(level, cases_of([op], dtype, SAMPLES[level]))


@pytest.mark.sample
@pytest.mark.parametrize("level", COMPARISONS)
def test_sample_of_modules(level):
    cases = [
        case
        for info in module_db
        for case in module_cases(info, torch.float32, SAMPLES[level])
    ]
    assert_same(level, cases)


@pytest.mark.slow
@pytest.mark.parametrize(
    "info", module_db, ids=lambda info: info.formatted_name
)
@pytest.mark.parametrize("level", COMPARISONS)
def test_module(level, info):
    """All samples in one dtype, and in others that the entry has."""
    assert_same(level, module_cases(info, torch.float32))
    for dtype in (torch.float64, torch.bfloat16):
        if dtype in info.dtypes:
            assert_same(level, module_cases(info, dtype, SAMPLES[level]))
