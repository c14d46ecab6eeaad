"""Mixes of devices work or raise as on CUDA."""

import collections
import re
import subprocess
import sys
import warnings

import pytest
from device_mixes import (
    _ROOT,
    FAKE_IS_WRONG,
    SAME_DEVICE_OPS,
    UNKNOWN,
    as_text,
    samples_of,
)
from parity_cases import op_entries

PARTS = 4
SAMPLES = 2  # of each entry, by default


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def is_wrapper_check(found):
    """An op refused a scalar that its CUDA wrapper would refuse, too."""
    named = re.search(r"for argument \w+ in ([\w:.]+)\)", str(found))
    return named is not None and named[1] in SAME_DEVICE_OPS


def compare(ops, limit):
    """Returns ({op: what differs}, entries that are excused, counts)."""
    different, excused, counts = {}, set(), collections.Counter()
    for op in ops:
        name = op.formatted_name
        for sample in samples_of(op, limit):
            for mix in sample.mixes():
                expected, found = sample.expected(mix), sample.found(mix)
                if expected == UNKNOWN or not sample.is_known():
                    counts["unknown"] += 1
                elif as_text(expected) == as_text(found):
                    counts["same"] += 1
                elif is_wrapper_check(found):
                    counts["wrapper"] += 1
                elif name in FAKE_IS_WRONG:
                    counts["excused"] += 1
                    excused.add(name)
                else:
                    different.setdefault(
                        op.formatted_name,
                        f"{mix}: expected {expected!r}, got {found!r}",
                    )
    return different, excused, counts


def assert_same(ops, limit):
    ops = list(ops)
    different, excused, counts = compare(ops, limit)
    print(dict(counts))
    assert not different, "\n".join(
        f"{name}: {what}" for name, what in different.items()
    )
    # Strict: an excuse that is not needed is one too many.
    assert excused == {
        op.formatted_name for op in ops if op.formatted_name in FAKE_IS_WRONG
    }


@pytest.mark.parametrize("part", range(PARTS))
def test_operators(part):
    assert_same(op_entries()[part::PARTS], SAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_operators_all_kinds_of_samples(part):
    assert_same(op_entries()[part::PARTS], None)


@pytest.mark.slow
def test_list_of_ops_is_that_of_the_pinned_torch():
    subprocess.run(
        [sys.executable, _ROOT / "ci/list_same_device_ops", "--check"],
        check=True,
    )
