"""Operands that an op overwrites completely are not fetched for it."""

import subprocess
import sys

import pytest
import torch
from support import ROOT, moved, same_bits
from torch_chameleon import _C

_SIZE = 1000


def evicted(value=7.0, size=_SIZE, **options):
    tensor = torch.full((size,), value, **options).to("chameleon")
    tensor.add_(0)  # in HBM
    _C.evict(tensor)
    torch.chameleon.synchronize()
    return tensor


A = torch.arange(_SIZE, dtype=torch.float32)

WHOLE = {
    "add.out": lambda t, a: torch.add(a, a, out=t),
    "mm.out": lambda t, a: torch.mm(
        a.view(1, -1).T[:50], a[:20].view(1, -1), out=t.view(50, 20)
    ),
    "sin.out": lambda t, a: torch.sin(a, out=t),
    "cat.out": lambda t, a: torch.cat([a[:300], a[300:]], out=t),
    "index.out": lambda t, a: torch.index_select(
        a, 0, torch.arange(_SIZE, device=a.device).flip(0), out=t
    ),
    "full.out": lambda t, a: torch.full((_SIZE,), 3.0, out=t),
    "zero_": lambda t, a: t.zero_(),
    "fill_": lambda t, a: t.fill_(2.5),
    "copy_": lambda t, a: t.copy_(a),
    "copy_ of another dtype": lambda t, a: t.copy_(a.to(torch.float64)),
    "copy_ broadcast from": lambda t, a: t.copy_(a[:1]),
    "through a view of all": lambda t, a: t.view(10, 100).T.zero_(),
    "foreach_zero_": lambda t, a: torch._foreach_zero_([t]),
    "foreach_copy_": lambda t, a: torch._foreach_copy_([t], [a]),
    "normal_": lambda t, a: t.normal_(generator=seeded(t.device)),
    "uniform_": lambda t, a: t.uniform_(generator=seeded(t.device)),
}

PART = {
    "a part": lambda t, a: t[:500].zero_(),
    "the other part": lambda t, a: t[500:].copy_(a[500:]),
    "every second": lambda t, a: t[::2].fill_(1.0),
    "out= of a part": lambda t, a: torch.add(a[:10], a[:10], out=t[5:15]),
    "an operand, too": lambda t, a: torch.add(t, a, out=t),
    "in place": lambda t, a: t.add_(a),
    "copied onto itself": lambda t, a: t.copy_(t.flip(0)[:1]),
    "all of it onto itself": lambda t, a: t.copy_(t[:]),
    "a list op's source, too": lambda t, a: torch._foreach_copy_([t], [t]),
    "two views": lambda t, a: torch.sin(t[:500], out=t[500:]),
    "as_strided": lambda t, a: t.as_strided((10, 10), (10, 1)).zero_(),
}


def seeded(device):
    return torch.Generator(device).manual_seed(3)


@pytest.mark.parametrize("name", WHOLE)
def test_nothing_is_fetched(name):
    act = WHOLE[name]
    a = A.to("chameleon")
    act(torch.empty(_SIZE, device="chameleon"), a)  # a is in HBM now
    target = evicted()
    counted = moved(lambda: act(target, a))
    assert counted["bytes_in"] == 0
    assert counted["faults"] == 0
    native = torch.full((_SIZE,), 7.0)
    act(native, A)
    assert same_bits(target, native)
    _C.evict(target)
    assert same_bits(target + 0, native)


@pytest.mark.parametrize("name", PART)
def test_what_is_not_overwritten_is_fetched(name):
    act = PART[name]
    a = A.to("chameleon").add_(0)
    target = evicted()
    counted = moved(lambda: act(target, a))
    assert counted["bytes_in"] == 4 * _SIZE
    native = torch.full((_SIZE,), 7.0)
    act(native, A)
    assert same_bits(target, native)


def test_an_op_that_raises_leaves_the_old_value():
    target = evicted()
    with pytest.raises(RuntimeError, match="std >= 0"):
        target.normal_(0, -1)
    assert same_bits(target, torch.full((_SIZE,), 7.0))
    a = torch.ones(3, 4, device="chameleon")
    target = evicted()
    with pytest.raises(RuntimeError):
        torch.mm(a, a, out=target)  # shapes do not fit
    assert same_bits(target, torch.full((_SIZE,), 7.0))
    target = evicted(7, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="result type"):
        torch.add(A.to("chameleon"), 1.5, out=target)
    assert same_bits(target, torch.full((_SIZE,), 7, dtype=torch.int32))


@pytest.mark.filterwarnings("ignore:An output with one or more elements")
@pytest.mark.parametrize("size", [10, _SIZE + 1])
def test_out_of_another_size(size):
    """A smaller result leaves the rest of the storage as it was."""

    def run(device, target):
        view = target[:]
        a = torch.arange(size, dtype=torch.float32, device=device)
        torch.add(a, a, out=target)
        return target, view

    ours = run("chameleon", evicted())
    native = run("cpu", torch.full((_SIZE,), 7.0))
    assert ours[0].shape == native[0].shape
    assert same_bits(ours[0], native[0])
    if size < _SIZE:
        assert same_bits(ours[1], native[1])


def test_empty_does_not_overwrite():
    target = evicted()
    torch.empty(_SIZE, out=target)
    assert same_bits(target, torch.full((_SIZE,), 7.0))


def test_the_list_is_that_of_the_installed_torch():
    subprocess.run(
        [sys.executable, ROOT / "ci/list_overwriting_ops", "--check"],
        check=True,
    )
