"""Mixes of devices work or raise as on CUDA."""

import collections
import itertools
import re
import subprocess
import sys
import warnings

import pytest
import torch
from support import ROOT, same_bits
from torch._subclasses.fake_tensor import FakeTensorMode

from conformance.databases.device_mixes import (
    CPU,
    FAKE_IS_WRONG,
    FAKE_IS_WRONG_ABOUT_OUT,
    HERE,
    SAME_DEVICE_OPS,
    SCALAR,
    UNKNOWN,
    as_text,
    is_unknown,
    kinds_of_samples,
    outcome,
)
from conformance.harness.counting import count
from conformance.harness.parity_cases import op_entries

PARTS = 12
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


class Tally:
    """Expected and found outcomes, held against each other."""

    def __init__(self, excuses):
        self._excuses, self.excused = excuses, set()
        self.different, self.known = {}, collections.Counter()

    def add(self, name, what, expected, found):
        if expected == UNKNOWN:
            return
        self.known[name] += 1
        if as_text(expected) == as_text(found) or is_wrapper_check(found):
            return
        if name in self._excuses:
            self.excused.add(name)
        else:
            self.different.setdefault(
                name, f"{what}: expected {expected!r}, got {found!r}"
            )

    def check(self, names):
        """No difference, and no excuse that is not needed."""
        for name, samples in self.known.items():
            excused = name in self.excused
            passed = not excused and name not in self.different
            count("device mixes", "", "never", passed, excused, samples)
        assert not self.different, "\n".join(
            f"{name}: {what}" for name, what in self.different.items()
        )
        assert self.excused == self._excuses.keys() & set(names)


def check_operands(ops, limit):
    tally = Tally(FAKE_IS_WRONG)
    for op in ops:
        for sample in kinds_of_samples(op, limit):
            known = sample.is_known()
            for mix in sample.mixes():
                expected = sample.expected(mix) if known else UNKNOWN
                found = sample.found(mix)
                tally.add(op.formatted_name, mix, expected, found)
    tally.check(op.formatted_name for op in ops)


@pytest.mark.sample
@pytest.mark.parametrize("part", range(PARTS))
def test_sample_of_operators(part):
    check_operands(op_entries()[part::PARTS], SAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4 * PARTS))
def test_operators(part):
    """All kinds of samples."""
    check_operands(op_entries()[part :: 4 * PARTS], None)


@pytest.mark.parametrize("part", range(PARTS))
def test_results(part):
    """out= on another device than the operands."""
    ops = [op for op in op_entries() if op.supports_out][part::PARTS]
    tally = Tally(FAKE_IS_WRONG_ABOUT_OUT)
    for op in ops:
        for sample in kinds_of_samples(op, SAMPLES, least=1):
            if not sample.has_one_result():
                continue
            for places in ((HERE, CPU), (CPU, HERE)):
                expected, found = sample.with_out(*places)
                tally.add(op.formatted_name, places, expected, found)
    tally.check(op.formatted_name for op in ops)


# Lists, whose elements CUDA takes one by one where their devices differ.
LISTS = {
    "add": lambda a, b: torch._foreach_add([a], [b]),
    "add in order": lambda a, b: torch._foreach_add([a, b], [a, b]),
    "add crossed": lambda a, b: torch._foreach_add([a, b], [b, a]),
    "add tensor": lambda a, b: torch._foreach_add([a], b),
    "add scalar": lambda a, b: torch._foreach_add([a, b], 2.0),
    "add scalars": lambda a, b: torch._foreach_add([a, b], [2.0, 3.0]),
    "mul tensor": lambda a, b: torch._foreach_mul([a], b),
    "div": lambda a, b: torch._foreach_div([a], [b]),
    "maximum": lambda a, b: torch._foreach_maximum([a], [b]),
    "pow": lambda a, b: torch._foreach_pow([a], [b]),
    "lerp": lambda a, b: torch._foreach_lerp([a], [b], 0.5),
    "addcmul": lambda a, b: torch._foreach_addcmul([a], [b], [b]),
    "norm": lambda a, b: torch._foreach_norm([a, b]),
    "sqrt": lambda a, b: torch._foreach_sqrt([a, b]),
    "zero_": lambda a, b: torch._foreach_zero_([a, b]) or [a, b],
    "copy_": lambda a, b: torch._foreach_copy_([a], [b]) or [a],
    "copy_ crossed": lambda a, b: torch._foreach_copy_([a, b], [b, a]) or [a],
    "cat": lambda a, b: torch.cat([a, b]),
    "stack": lambda a, b: torch.stack([a, b]),
    "hstack": lambda a, b: torch.hstack([a, b]),
    "cartesian_prod": lambda a, b: torch.cartesian_prod(a, b),
    "meshgrid": lambda a, b: torch.meshgrid(a, b, indexing="ij"),
    "broadcast": lambda a, b: torch.broadcast_tensors(a, b),
    "einsum": lambda a, b: torch.einsum("i,i", a, b),
    "result_type": lambda a, b: [a] if torch.result_type(a, b) else [],
}


@pytest.mark.parametrize("mix", itertools.permutations((HERE, CPU, SCALAR), 2))
@pytest.mark.parametrize("name", LISTS)
def test_lists(name, mix):
    if HERE not in mix:
        pytest.skip("all on the CPU")

    def run(device):
        operands = [
            torch.ones(
                () if where == SCALAR else 2,
                device=device if where == HERE else "cpu",
            )
            for where in mix
        ]
        return outcome(lambda: LISTS[name](*operands))

    with FakeTensorMode():
        expected = run("cuda")
    if is_unknown(expected):
        pytest.skip("FakeTensorMode cannot tell")
    assert as_text(run("chameleon")) == as_text(expected)


def test_tensor_of_scalars_stays_on_the_cpu(tight):
    """One scalar for each element of the lists, also where lists are cut."""
    scalars = torch.arange(1.0, 9.0)
    lists = [[torch.rand(1 << 14) for _ in range(8)] for _ in range(3)]
    ours = [[tensor.chameleon() for tensor in part] for part in lists]
    tight(2 << 20)
    for op in (torch._foreach_addcmul, torch._foreach_addcdiv):
        native = op(*lists, scalars)
        assert all(map(same_bits, native, op(*ours, scalars)))
    mixed = [[a.cpu(), *part[1:]] for part in ours for a in part[:1]]
    native = torch._foreach_addcmul(*lists, scalars)
    results = torch._foreach_addcmul(*mixed, scalars)
    assert [r.device.type for r in results] == ["cpu"] + ["chameleon"] * 7
    assert all(map(same_bits, native, results))


@pytest.mark.slow
def test_list_of_ops_is_that_of_the_pinned_torch():
    subprocess.run(
        [sys.executable, ROOT / "ci/list_same_device_ops", "--check"],
        check=True,
    )
