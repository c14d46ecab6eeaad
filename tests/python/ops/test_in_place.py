"""In-place and out= forms that are composed of other ops below us."""

import pytest
import torch
from support import MIB, same_bits


def on_both(*shape, dtype=torch.float32):
    native = torch.rand(shape).to(dtype)
    return native, native.to("chameleon")


@pytest.mark.parametrize(
    "name", ["logical_and_", "logical_or_", "logical_xor_"]
)
def test_an_operand_that_is_also_the_result_does_not_grow(name):
    for small, large in zip(on_both(5, 1), on_both(5, 5), strict=True):
        with pytest.raises(RuntimeError, match="doesn't match the broadcast"):
            getattr(small, name)(large)
        assert small.shape == (5, 1)


def test_addr_in_place_does_not_expand_its_operand():
    for tensor in on_both():
        row = torch.ones(3, device=tensor.device)
        with pytest.raises(RuntimeError, match="2D tensor expected"):
            tensor.addr_(row, row)


def test_composites_that_choose_by_device():
    native, ours = on_both(4, 3)
    results = [
        torch.mode(t, out=(torch.empty_like(t[:, 0]), t[:, 0].long()))
        for t in (native, ours)
    ]
    for one, other in zip(*results, strict=True):
        assert same_bits(one, other)
    native, ours = on_both(4, 3, dtype=torch.complex64)
    assert same_bits(native.conj_physical_(), ours.conj_physical_())
    u, s, v = torch.svd(ours)
    out = [torch.empty_like(t.contiguous()) for t in (u, s, v)]
    torch.svd(ours, out=out)
    for one, other in zip(out, (u, s, v), strict=True):
        assert same_bits(one, other)


@pytest.mark.parametrize("budget", [256 * MIB, MIB // 2])
def test_in_place_list_ops_count_versions(budget, tight):
    tight(budget)  # the smaller one: in chunks
    tensors = [torch.ones(1 << 14, device="chameleon") for _ in range(8)]
    torch._foreach_add_(tensors, 1.0)
    torch._foreach_mul_(tensors, tensors[1:] + tensors[:1])
    assert [t._version for t in tensors] == [2] * 8
    with torch.inference_mode():
        torch._foreach_add_([torch.ones(2, device="chameleon")], 1.0)


@pytest.mark.parametrize("budget", [None, MIB // 4])
@pytest.mark.parametrize("at", [0, 1])
def test_list_ops_refuse_inference_tensors(budget, at, tight):
    """As natively, but before any of them is written."""
    if budget is not None:
        tight(budget)  # list ops are deferred
    plain = [torch.ones(1 << 14, device="chameleon") for _ in range(8)]
    with torch.inference_mode():
        torch._foreach_add_(plain, 1.0)
        made = torch.zeros(1 << 14, device="chameleon")
        torch._foreach_add_([made], 1.0)
    mixed = [plain[0], plain[1]]
    mixed.insert(at, made)
    version = plain[0]._version
    with pytest.raises(RuntimeError, match="Inplace update to inference"):
        torch._foreach_mul_(mixed, 3.0)
    with pytest.raises(RuntimeError, match="Inplace update to inference"):
        torch._foreach_copy_([made], [plain[0]])
    assert [t[0].item() for t in mixed] == [
        1.0 if t is made else 2 for t in mixed
    ]
    assert plain[0]._version == version


def test_backward_notices_an_in_place_list_op():
    x = torch.ones(3, device="chameleon", requires_grad=True)
    saved = x.exp()
    with torch.no_grad():
        torch._foreach_mul_([saved], 2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()


@pytest.mark.parametrize("exponent", [torch.tensor([1, 2, 3, 4]), 2.0])
def test_ldexp(exponent):
    """With integers it calls a kernel of its argument's device by itself."""
    there = torch.as_tensor(exponent).to("chameleon")
    for x in (torch.arange(4.0), torch.arange(4.0, dtype=torch.float16)):
        ours = x.to("chameleon")
        expected = torch.ldexp(x, torch.as_tensor(exponent))
        assert same_bits(torch.ldexp(ours, there), expected)
        out = torch.empty_like(expected, device="chameleon")
        assert same_bits(torch.ldexp(ours, there, out=out), expected)
        assert same_bits(
            ours.ldexp_(there), x.ldexp_(torch.as_tensor(exponent))
        )
