"""op_db under autograd's and torch.func's transforms, entry by entry."""

from itertools import islice

import pytest
import torch
import torch._decomp.decompositions_for_jvp  # warns once, so now
from torch.testing._internal.common_methods_invocations import op_db

from conformance.databases import transform_checks
from conformance.harness import selection
from conformance.harness.known_differences import UNINITIALISED, known
from conformance.harness.pagers import PAGERS
from conformance.harness.samples import samples_of
from conformance.harness.suite import Suite

ENTRIES = {op.formatted_name: op for op in op_db}
DTYPES = (torch.float32, torch.float64, torch.complex128, torch.bfloat16)
# Every third entry, one check each.
SAMPLED = [name for name in ENTRIES if selection.hashed(name) % 3 == 0]
SAMPLED_ACTIONS = 2
GRADCHECKED = [n for n in ENTRIES if selection.hashed("g", n) % 12 == 0]


def case(suite, op, check, dtype, actions, pagers=PAGERS, complete=True):
    suite.case(
        op.formatted_name,
        check,
        dtype,
        actions,
        pagers,
        values=op.name not in UNINITIALISED,
        complete=complete,
    )


@pytest.mark.sample
@pytest.mark.parametrize("name", SAMPLED)
def test_sample_of_op(name):
    op, suite = ENTRIES[name], Suite("transforms")
    check = selection.choose(transform_checks.CHECKS, 1, name)[0]
    dtypes = [d for d in DTYPES if d in op.supported_dtypes("cpu")]
    for dtype in selection.choose(dtypes, 1, name):
        actions = transform_checks.CHECKS[check](op, dtype)
        pagers = selection.choose(PAGERS, 1, name)
        actions = islice(actions, SAMPLED_ACTIONS)
        case(suite, op, check, dtype, actions, pagers, complete=False)
    suite.verify()


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
def test_op(name):
    """Every check and pager, three dtypes."""
    op, suite = ENTRIES[name], Suite("transforms")
    for dtype in DTYPES:
        if dtype not in op.supported_dtypes("cpu"):
            continue
        for check, actions in transform_checks.CHECKS.items():
            case(suite, op, check, dtype, islice(actions(op, dtype), 8))
    suite.verify()


def checked(op, device, check):
    """Whether a gradient check passes; None where it cannot be made."""
    samples = samples_of(op, torch.float64, requires_grad=True)
    results = []
    for sample in islice(samples, 2):
        call = transform_checks.Call(op, sample, device)
        numbers = [n for n in call.numbers if n.requires_grad]
        if not numbers or len(numbers) != len(call.numbers):
            continue

        def function(*given, call=call):
            torch.manual_seed(0)
            found = call(*given)
            return tuple(r for r in found if r.requires_grad)

        try:
            results.append(
                check(function, numbers, fast_mode=True, raise_exception=False)
            )
        except Exception as error:
            results.append(type(error))
    return results


@pytest.mark.sample
@pytest.mark.parametrize("name", GRADCHECKED)
def test_sample_of_gradcheck(name):
    check_gradients(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
def test_gradcheck(name):
    check_gradients(name)


def check_gradients(name):
    """First and second derivatives agree with finite differences."""
    op = ENTRIES[name]
    if torch.float64 not in op.supported_backward_dtypes("cpu"):
        return
    if known("ops", name, "backward", "float64"):
        return
    checks = [torch.autograd.gradcheck]
    if op.supports_gradgrad:
        checks.append(torch.autograd.gradgradcheck)
    for check in checks:
        native = checked(op, "cpu", check)
        assert checked(op, "chameleon", check) == native
