"""Ops with a direct kernel: one of each signature, and what is special."""

import copy

import pytest
import torch
import torch_chameleon
from support import MIB, moved, same_bits
from torch_chameleon import _testing

aten = torch.ops.aten


def _randn(*shape):
    return torch.randn(*shape)


def _classes(count, bound):
    return torch.randint(0, bound, (count,))


# Name: (op, arguments). Tensors in the arguments are the operands.
CALLS = {
    "relu": (aten.relu, lambda: [_randn(5, 3)]),
    "clone": (aten.clone, lambda: [_randn(5, 3)]),
    "add": (aten.add.Tensor, lambda: [_randn(5, 3), _randn(3)]),
    "add scalar": (aten.add.Scalar, lambda: [_randn(5, 3), 2, 3]),
    "mul": (aten.mul.Tensor, lambda: [_randn(5, 1), _randn(1, 3)]),
    "mul scalar": (aten.mul.Scalar, lambda: [_randn(5, 3), 2.5]),
    "where": (
        aten.where.self,
        lambda: [_randn(5) > 0, _randn(5), _randn(5)],
    ),
    "addmm": (aten.addmm, lambda: [_randn(3), _randn(5, 4), _randn(4, 3)]),
    "addcmul": (aten.addcmul, lambda: [_randn(5), _randn(5), _randn(5)]),
    "gelu": (aten.gelu, lambda: [_randn(5, 3)]),
    "gelu tanh": (aten.gelu_backward, lambda: [_randn(5), _randn(5)]),
    "softmax": (aten._softmax, lambda: [_randn(5, 3), 1, False]),
    "softmax backward": (
        aten._softmax_backward_data,
        lambda: [_randn(5, 3), _randn(5, 3), 1, torch.float32],
    ),
    "sum": (aten.sum, lambda: [_randn(5, 3)]),
    "sum of rows": (aten.sum.dim_IntList, lambda: [_randn(5, 3), [1], True]),
    "cumsum": (aten.cumsum, lambda: [_randn(5, 3), 0]),
    "argmax": (aten.argmax, lambda: [_randn(5, 3), 1]),
    "embedding": (aten.embedding, lambda: [_randn(7, 4), _classes(5, 7)]),
    "embedding backward": (
        aten.embedding_dense_backward,
        lambda: [_randn(5, 4), _classes(5, 7), 7, -1, False],
    ),
    "nll": (
        aten.nll_loss_forward,
        lambda: [_randn(5, 3), _classes(5, 3), _randn(3).abs(), 1, -100],
    ),
    "nll, no weight": (
        aten.nll_loss_forward,
        lambda: [_randn(5, 3), _classes(5, 3), None, 1, -100],
    ),
    "nll backward": (
        aten.nll_loss_backward,
        lambda: [
            _randn(()),
            _randn(5, 3),
            _classes(5, 3),
            None,
            1,
            -100,
            torch.tensor(5.0),
        ],
    ),
    "mse": (aten.mse_loss, lambda: [_randn(5), _randn(5)]),
    "mse backward": (
        aten.mse_loss_backward,
        lambda: [_randn(()), _randn(5), _randn(5), 1],
    ),
    "layer norm": (
        aten.native_layer_norm,
        lambda: [_randn(5, 4), [4], _randn(4), _randn(4), 1e-5],
    ),
    "layer norm, plain": (
        aten.native_layer_norm,
        lambda: [_randn(5, 4), [4], None, None, 1e-5],
    ),
    "layer norm backward": (
        aten.native_layer_norm_backward,
        lambda: [
            _randn(5, 4),
            _randn(5, 4),
            [4],
            _randn(5, 1),
            _randn(5, 1).abs(),
            _randn(4),
            _randn(4),
            [True, False, True],
        ],
    ),
    "batch norm": (
        aten.native_batch_norm,
        lambda: [
            _randn(5, 4),
            _randn(4),
            _randn(4),
            torch.zeros(4),
            torch.ones(4),
            True,
            0.1,
            1e-5,
        ],
    ),
    "batch norm backward": (
        aten.native_batch_norm_backward,
        lambda: [
            _randn(5, 4),
            _randn(5, 4),
            _randn(4),
            torch.zeros(4),
            torch.ones(4),
            _randn(4),
            _randn(4).abs(),
            True,
            1e-5,
            [True, True, True],
        ],
    ),
    "dropout": (aten.native_dropout, lambda: [_randn(50), 0.5, True]),
    "dropout backward": (
        aten.native_dropout_backward,
        lambda: [_randn(5), _randn(5) > 0, 2.0],
    ),
    "max of rows": (aten.max.dim, lambda: [_randn(5, 3), 1]),
    "max pool": (
        aten.max_pool2d_with_indices,
        lambda: [_randn(1, 2, 6, 6), [2, 2]],
    ),
    "index select": (
        aten.index_select,
        lambda: [_randn(5, 3), 0, _classes(4, 5)],
    ),
    "gather": (
        aten.gather,
        lambda: [_randn(5, 3), 1, torch.randint(0, 3, (5, 2))],
    ),
    "relu_": (aten.relu_, lambda: [_randn(5)]),
    "add_": (aten.add_.Tensor, lambda: [_randn(5, 3), _randn(3)]),
    "add_ scalar": (aten.add_.Scalar, lambda: [_randn(5), 2]),
    "mul_": (aten.mul_.Tensor, lambda: [_randn(5), _randn(1)]),
    "mul_ scalar": (aten.mul_.Scalar, lambda: [_randn(5), 2]),
    "addcmul_": (aten.addcmul_, lambda: [_randn(5), _randn(5), _randn(5)]),
    "lerp_": (aten.lerp_.Tensor, lambda: [_randn(5), _randn(5), _randn(5)]),
    "foreach add_": (
        aten._foreach_add_.Scalar,
        lambda: [[_randn(5), _randn(2, 3)], 2],
    ),
    "foreach add_ lists": (
        aten._foreach_add_.List,
        lambda: [[_randn(5), _randn(3)], [_randn(5), _randn(3)]],
    ),
    "foreach mul_": (
        aten._foreach_mul_.List,
        lambda: [[_randn(5), _randn(3)], [_randn(5), _randn(3)]],
    ),
    "foreach addcmul_": (
        aten._foreach_addcmul_.Scalar,
        lambda: [[_randn(5)], [_randn(5)], [_randn(5)]],
    ),
    "foreach addcdiv_": (
        aten._foreach_addcdiv_.ScalarList,
        lambda: [[_randn(5), _randn(3)] for _ in range(3)] + [[1.0, 2.0]],
    ),
    "foreach div_": (
        aten._foreach_div_.ScalarList,
        lambda: [[_randn(5), _randn(3)], [2.0, 3.0]],
    ),
    "foreach sqrt": (aten._foreach_sqrt, lambda: [[_randn(5), _randn(3)]]),
    "foreach add": (
        aten._foreach_add.List,
        lambda: [[_randn(5), _randn(3)], [_randn(5), _randn(3)]],
    ),
    "foreach mul": (
        aten._foreach_mul.Scalar,
        lambda: [[_randn(5), _randn(3)], 2],
    ),
}


def on_device(value):
    """The same arguments on chameleon."""
    if isinstance(value, list):
        return [on_device(each) for each in value]
    return value.to("chameleon") if isinstance(value, torch.Tensor) else value


def tensors_in(value):
    """All tensors in results or arguments, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for each in value for tensor in tensors_in(each)]
    return []


def agree(op, arguments):
    """Compares results and operands with the native op's."""
    ours = on_device(arguments)
    torch.manual_seed(1)
    expected = op(*arguments)
    torch.manual_seed(1)
    result = op(*ours)
    natives = tensors_in([expected, arguments])
    outers = tensors_in([result, ours])
    for native, outer in zip(natives, outers, strict=True):
        assert outer.device.type == "chameleon"
        assert outer.stride() == native.stride()
        assert same_bits(native, outer)


@pytest.mark.parametrize("evicting", [False, True], ids=["calm", "evicting"])
@pytest.mark.parametrize("name", CALLS)
def test_signature(name, evicting):
    op, make = CALLS[name]
    torch.manual_seed(0)
    for _ in range(3):  # the second time on what the first left behind
        arguments = make()
        if evicting:
            _testing.set_stress("all", 0)
        try:
            agree(op, arguments)
        finally:
            _testing.set_stress("never", 0)


def test_one_tensor_twice():
    x = _randn(5)
    agree(aten.mul.Tensor, [x, x])
    ours = x.to("chameleon")
    version = ours._version
    assert ours.add_(ours) is ours
    assert ours._version == version + 1
    assert same_bits(ours, x + x)


def test_numbers_on_the_cpu():
    x = _randn(5)
    ours = x.to("chameleon")
    for op in (
        lambda t: t * 2.5,
        lambda t: 3 - t,
        lambda t: t + torch.tensor(3.0, dtype=torch.float64),
        lambda t: torch.where(t > 0, t, torch.tensor(7.0)),
        lambda t: t.clone().mul_(torch.tensor(2.0)),
    ):
        result = op(ours)
        assert result.device.type == "chameleon"
        assert same_bits(result, op(x))
    for wrong in (torch.ones(5), torch.ones(1)):
        with pytest.raises(RuntimeError, match="same device"):
            ours * wrong
    number = torch.tensor(2.0)
    with pytest.raises(RuntimeError, match="same device"):
        number.mul_(ours.sum())


CLONED = {
    "dense": lambda x: x,
    "transposed": lambda x: x.transpose(1, 3),
    "every other": lambda x: x[:, ::2],
    "expanded": lambda x: x.unsqueeze(0).expand(2, -1, -1, -1, -1),
    "empty": lambda x: x[:0],
    "scalar": lambda x: x[0, 0, 0, 0],
    "conjugate": lambda x: x.transpose(0, 1).conj(),
    "negative": lambda x: x.conj().imag,
}


@pytest.mark.parametrize("view", CLONED)
def test_clones(view):
    x = torch.randn(4, 3, 6, 5, dtype=torch.complex64)
    ours = CLONED[view](x.to("chameleon"))
    native = CLONED[view](x)
    formats = [None, torch.contiguous_format, torch.preserve_format]
    if native.dim() == 4:
        formats.append(torch.channels_last)
    for memory_format in formats:
        wanted = native.clone(memory_format=memory_format)
        before = torch_chameleon.swap_stats()["ops"]
        clone = ours.clone(memory_format=memory_format)
        assert torch_chameleon.swap_stats()["ops"] - before <= 1
        assert clone.stride() == wanted.stride()
        assert clone.is_conj() == wanted.is_conj()
        assert clone.is_neg() == wanted.is_neg()
        assert not clone.is_set_to(ours)
        assert clone.untyped_storage().size() == wanted.untyped_storage().size()
        assert same_bits(clone, wanted)


def test_views_of_one_storage():
    base = _randn(4, 4)
    ours = base.to("chameleon")
    assert same_bits(ours[0] * ours[1], base[0] * base[1])
    ours[0].add_(ours[1])
    base[0].add_(base[1])
    assert same_bits(ours, base)
    # A kernel sees that what it writes overlaps what it reads.
    with pytest.raises(RuntimeError, match="single memory location"):
        ours[:3].add_(ours[1:])


@pytest.mark.parametrize(
    "layout", [torch.channels_last, torch.contiguous_format]
)
def test_memory_format_goes_with_the_alias_tensor(layout):
    x = _randn(2, 3, 4, 5).to(memory_format=layout)
    ours = x.to("chameleon")
    for op in (torch.relu, torch.neg, lambda t: t.mul_(2)):
        native, result = op(x), op(ours)
        assert result.stride() == native.stride()
        assert result.is_contiguous(memory_format=layout)
        assert same_bits(result, native)
    many = _randn(1, 2, 1, 2, 1, 2, 2)  # more dimensions than fit inline
    agree(aten.relu, [many])
    agree(aten.relu, [_randn(3)])


def test_detached_tensors_may_be_written():
    # .data forbids changes of its shape; the alias must not inherit that.
    x = torch.zeros(4, device="chameleon")
    x.data.add_(1)
    torch.add(x, x.data, out=x.data)
    assert same_bits(x, torch.full((4,), 2.0))


def test_long_lists_and_repeated_tensors():
    for count in (1, 32, 33, 200, 1024, 1025):
        native = [_randn(3) for _ in range(count)]
        ours = on_device(native)
        torch._foreach_add_(native, 1.0)
        torch._foreach_add_(ours, 1.0)
        assert all(map(same_bits, native, ours))
    one = _randn(3)
    ours = one.to("chameleon")
    torch._foreach_add_([one, one], 1.0)
    torch._foreach_add_([ours, ours], 1.0)
    assert same_bits(one, ours)


# By number, each once: of a list's tensors and of those of a later one.
TWICE = {
    "the same list": [0, 1, 2, 3],
    "a part of it": [1, 2],
    "another order": [1, 0, 2, 3],
    "with others": [0, 1, 7, 8],
    "others first": [7, 0, 1, 8],
    "one of them twice": [0, 0, 1, 2],
}


@pytest.mark.parametrize("repeat", [1, 30], ids=["short", "long"])
@pytest.mark.parametrize("name", TWICE)
def test_lists_that_share_tensors(name, repeat):
    """A kernel reads and writes what it would natively."""
    second = TWICE[name]
    native = [_randn(3) for _ in range(10 * repeat)]
    ours = on_device(native)
    for tensors in (native, ours):
        a, b = [], []
        for i in range(repeat):
            each = tensors[10 * i : 10 * i + 10]
            a += each[: len(second)]
            b += [each[k] for k in second]
        torch._foreach_addcmul_(a, b, b)
        torch._foreach_mul_(b, a)
        a[0].copy_(torch.cat([*a, *b])[:3])
    assert all(map(same_bits, native, ours))
    versions = [[x._version for x in tensors] for tensors in (native, ours)]
    assert versions[0] == versions[1]


def test_long_lists_still_run_in_chunks(tight):
    tight("8MiB")
    torch_chameleon.reset_swap_stats()
    native = [_randn(MIB // 4) for _ in range(12)]
    ours = on_device(native)
    torch._foreach_mul_(native, 3.0)
    torch._foreach_mul_(ours, 3.0)
    assert all(map(same_bits, native, ours))
    assert torch_chameleon.swap_stats()["peak_resident_bytes"] <= 8 * MIB


def test_out_of_memory_inside_a_kernel(tight):
    tight("4MiB")
    x = torch.ones(MIB // 2, device="chameleon")  # 2 MiB
    wide = torch.ones(MIB, 1, device="chameleon")
    with pytest.raises(torch.OutOfMemoryError, match="hbm_budget"):
        wide + torch.ones(1, 2, device="chameleon")
    assert same_bits(wide, torch.ones(MIB, 1))
    assert same_bits(x, torch.ones(MIB // 2))
    x.add_(1)
    assert same_bits(x, torch.full((MIB // 2,), 2.0))


def test_errors_of_the_kernel_let_go_of_everything():
    x, y = on_device([_randn(3), _randn(4)])
    for op in (torch.add, lambda a, b: a.add_(b)):
        with pytest.raises(RuntimeError, match="must match"):
            op(x, y)
    assert torch_chameleon.swap_stats()["pinned_bytes"] == 0
    assert same_bits(x + x, x.cpu() + x.cpu())


def test_kept_results_and_dropped_ones_do_not_share_memory():
    native, ours = [], []
    torch.manual_seed(0)
    for i in range(200):
        x = _randn(1 + i % 7)
        native.append(x * 2)
        ours.append(x.to("chameleon") * 2)
        if i % 3 == 0:
            del native[i // 2], ours[i // 2]
    assert all(map(same_bits, native, ours))
    addresses = {tensor.data_ptr() for tensor in ours}
    assert len(addresses) == len(ours)


def test_a_resident_op_moves_nothing():
    a, b = on_device([_randn(8), _randn(8)])
    torch.add(a, b)
    difference = moved(lambda: [torch.add(a, b) for _ in range(100)])
    assert difference["ops"] == 100
    for key in ("faults", "evictions", "host_waits", "resident_bytes"):
        assert difference[key] == 0


def test_threads_that_come_and_go():
    import threading

    a = _randn(100)
    ours = a.to("chameleon")
    results = []

    def work():
        results.append((ours * 2 + ours).relu())

    for _ in range(20):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    expected = (a * 2 + a).relu()
    assert len(results) == 80
    assert all(same_bits(each, expected) for each in results)


def test_training_step_agrees():
    torch.manual_seed(0)
    native = torch.nn.Sequential(
        torch.nn.Embedding(11, 8),
        torch.nn.LayerNorm(8),
        torch.nn.Linear(8, 16),
        torch.nn.GELU(),
        torch.nn.Linear(16, 11),
    )
    ours = copy.deepcopy(native).to("chameleon")
    x, y = _classes(20, 11), _classes(20, 11)
    for net, device in ((native, "cpu"), (ours, "chameleon")):
        optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
        for _ in range(5):
            logits = net(x.to(device))
            loss = torch.nn.functional.cross_entropy(logits, y.to(device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert all(map(same_bits, native.parameters(), ours.parameters()))
