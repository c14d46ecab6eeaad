"""List ops that wait for each other: nobody can tell, but from what moves."""

import gc
import weakref

import pytest
import torch
import torch_chameleon
from deferred_lists import COUNT, SHAPE, all_same, put_off, tensors
from support import MIB, moved, same_bits
from torch_chameleon import _C, _testing


@pytest.fixture(autouse=True)
def short_of_memory(tight):
    tight(2 * MIB)


# ---- which ops, and when ---------------------------------------------------

F = torch
UNARY = ["abs", "neg", "sign", "sqrt", "rsqrt", "reciprocal"]
BINARY = [
    *("add", "sub", "mul", "div", "pow"),
    *("maximum", "minimum", "clamp_min", "clamp_max"),
]


def cases():
    for name in UNARY:
        yield name, lambda a, b, c: ()
    for name in BINARY:
        yield name, lambda a, b, c: (2.0,)
        yield name, lambda a, b, c: ([0.5 + i for i in range(len(a))],)
        yield name, lambda a, b, c: (b,)
    for name in ("add", "mul", "div"):
        yield name, lambda a, b, c: (c[0].mean(),)
    for name in ("addcmul", "addcdiv"):
        yield name, lambda a, b, c: (b, c, 0.3)
        yield name, lambda a, b, c: (b, c, [0.1 * i for i in range(len(a))])
    yield "lerp", lambda a, b, c: (b, 0.7)
    yield "lerp", lambda a, b, c: (b, c)
    yield "lerp", lambda a, b, c: (b, [0.1 * i for i in range(len(a))])


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16]
)
def test_every_op_in_both_forms(dtype):
    for name, more in cases():
        for form in ("", "_"):
            results = {}
            for device in ("cpu", "chameleon"):
                a, b, c = (tensors(device, s, 3, dtype) for s in range(3))
                arguments = more(a, b, c)
                if device == "chameleon":
                    _C.evict_all(0)
                made = getattr(torch, f"_foreach_{name}{form}")(a, *arguments)
                if device == "chameleon":
                    # So none of them can fail: the CPU has run them all.
                    count = _testing.deferred_op_count()
                    assert count == 1, (name, form, arguments)
                results[device] = [*a, *(made or ())]
                for x in results[device]:
                    assert x.stride() == a[0].stride()
            assert all_same(results["chameleon"], results["cpu"]), (name, form)


def test_copy_and_zero():
    xs, ys = tensors("chameleon"), tensors("chameleon", 1)
    _C.evict_all(0)
    torch._foreach_copy_(xs, ys)
    torch._foreach_zero_(ys)
    assert _testing.deferred_op_count() == 2
    assert all_same(xs, tensors("cpu", 1))
    assert not any(y.any() for y in ys)


def test_at_once_with_enough_memory(tight):
    tight(64 * MIB)
    xs = tensors("chameleon")
    torch._foreach_mul_(xs, 3.0)
    assert _testing.deferred_op_count() == 0


def test_whole_where_all_fits(tight):
    """What is back in HBM is there, whatever copies the host keeps."""
    xs = tensors("chameleon")
    size = sum(x.nbytes for x in xs)
    tight(2 * size + size // 8)
    _C.evict_all(0)
    for x in xs:
        x.sum()
    stats = torch_chameleon.swap_stats()
    assert stats["host_bytes"] >= size
    torch._foreach_mul_(xs, 3.0)  # longer than a chunk
    made = torch._foreach_mul(xs, 3.0)
    assert _testing.deferred_op_count() == 0
    assert torch_chameleon.swap_stats()["ops"] == stats["ops"] + 2
    more = torch._foreach_mul(xs, 3.0)  # results must fit, too
    assert _testing.deferred_op_count() == 1
    assert all_same(made, more)


def test_a_gradient_that_was_only_read_stays_clean():
    """A fused optimizer writes it only where it has unscaled it."""
    gradient = torch.ones(1 << 16, device="chameleon")
    lists = [[torch.zeros_like(gradient)] for _ in range(3)]
    steps = [torch.ones((), device="chameleon")]
    numbers = {
        "lr": 0.1,
        "beta1": 0.9,
        "beta2": 0.99,
        "weight_decay": 0.0,
        "eps": 1e-8,
        "amsgrad": False,
        "maximize": False,
    }
    for scale in (None, torch.full((), 2.0, device="chameleon")):
        _C.evict_all(0)
        torch._fused_adamw_(
            lists[0],
            [gradient],
            *lists[1:],
            [],
            steps,
            **numbers,
            grad_scale=scale,
        )
        before = torch_chameleon.swap_stats()["bytes_out"]
        _C.evict_all(0)
        out = torch_chameleon.swap_stats()["bytes_out"] - before
        assert (out >= 4 * gradient.nbytes) == (scale is not None)
    assert same_bits(gradient, torch.full((1 << 16,), 0.5))


def test_a_run_has_at_most_32_ops():
    xs = tensors("chameleon")
    ballast = tensors("chameleon", count=16)  # more than fits
    _C.evict_all(0)
    for i in range(40):
        torch._foreach_add_(xs, float(i))
        assert _testing.deferred_op_count() == i % 32 + 1
    expected = tensors("cpu")
    for i in range(40):
        torch._foreach_add_(expected, float(i))
    assert all_same(xs, expected)
    del ballast


def test_what_could_fail_is_not_put_off():
    def xs(dtype=torch.float32):
        return tensors("chameleon", dtype=dtype)

    one = xs()[0]
    actions = [
        lambda: torch._foreach_add_(xs(torch.int32), 1),
        lambda: torch._foreach_add_(xs(), xs(torch.float64)),
        lambda: torch._foreach_mul_(xs(torch.float16), 1e6),
        lambda: torch._foreach_add_([x[:, :9] for x in xs()], 1.0),
        lambda: torch._foreach_add_(xs(), [x[:1] for x in xs()]),
        lambda: torch._foreach_add_(xs(), [x.view(256, 128).t() for x in xs()]),
        lambda: torch._foreach_mul_(xs(), torch.tensor(2.0)),
        lambda: torch._foreach_add_([one, one], 1.0),
        lambda: torch._foreach_add_([one[:64], one[64:]], 1.0),
        lambda: torch._foreach_norm(xs()),
        lambda: torch._foreach_exp(xs()),
        lambda: torch._foreach_add_(xs(torch.complex64), 1.0),
        lambda: torch._foreach_mul_(xs(), True),
    ]
    for number, action in enumerate(actions):
        _C.evict_all(0)
        action()
        assert _testing.deferred_op_count() == 0, number


def test_exceptions_come_from_the_op_at_fault():
    xs, ys = tensors("chameleon"), tensors("chameleon", 1)
    _C.evict_all(0)
    torch._foreach_mul_(xs, 2.0)
    torch._foreach_add_(xs, ys)
    with pytest.raises(RuntimeError, match="size"):
        torch._foreach_add_(xs, [y[:3] for y in ys])
    assert _testing.deferred_op_count() == 0
    with pytest.raises(RuntimeError, match="same number"):
        torch._foreach_add_(xs, ys[:2])
    with pytest.raises(RuntimeError, match="overflow"):
        torch._foreach_addcmul_(xs, ys, ys, 1e300)
    torch._foreach_mul_(xs, 0.5)
    expected = [
        x.mul(2.0).add(y).mul(0.5)
        for x, y in zip(tensors("cpu"), tensors("cpu", 1), strict=True)
    ]
    assert all_same(xs, expected)


def fused_sgd(xs, ys, zs):
    torch._fused_sgd_(
        xs,
        ys,
        zs,  # without momentum there are none
        lr=0.1,
        momentum=0.0,
        dampening=0.0,
        weight_decay=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=True,
    )


REFUSED = {
    "True is subtracted": lambda xs, ys, zs: torch._foreach_sub_(xs, True),
    "True, to a result": lambda xs, ys, zs: torch._foreach_sub(xs, True),
    "alpha is True": lambda xs, ys, zs: torch._foreach_add_(xs, ys, alpha=True),
    "one scalar for a list of them": lambda xs, ys, zs: torch._foreach_addcmul_(
        xs, ys, zs, torch.ones((), device=xs[0].device)
    ),
    "buffers without momentum": fused_sgd,
}


@pytest.mark.parametrize("what", REFUSED)
def test_who_refuses_it_is_the_op(what):
    messages = []
    for device in ("cpu", "chameleon"):
        xs, ys, zs = (tensors(device, seed, 3) for seed in range(3))
        if device == "chameleon":
            _C.evict_all(0)
        with pytest.raises(RuntimeError) as refusal:
            REFUSED[what](xs, ys, zs)
        messages.append(str(refusal.value))
    assert messages[0] == messages[1]
    assert all_same(xs, tensors("cpu", 0, 3))


# ---- who has to see it -----------------------------------------------------

USES = {  # of the tensor's bytes
    "cpu": lambda x: x.cpu(),
    "item": lambda x: x[0, 0].item(),
    "tolist": lambda x: x.tolist(),
    "an op": lambda x: x + 1,
    "an op that writes": lambda x: x.neg_().neg_(),
    "an op of lists": lambda x: torch._foreach_norm([x]),
    "an op of many": lambda x: torch.cat([x, x]),
    "a copy of it": lambda x: torch.empty_like(x).copy_(x),
    "a copy to it": lambda x: x.copy_(x.clone()),
    "a view of it": lambda x: x.view(-1)[5:].sum(),
    "resize": lambda x: x.untyped_storage().resize_(1 << 18),
    "record_stream": lambda x: x.record_stream(
        torch.chameleon.current_stream()
    ),
}


@pytest.mark.parametrize("use", USES)
def test_who_uses_one_sees_it(use):
    """The others wait on."""
    xs, expected = put_off()
    assert all(map(_testing.has_deferred_op, xs))
    USES[use](xs[2])
    assert [i for i in range(COUNT) if not _testing.has_deferred_op(xs[i])] == [
        2
    ]
    assert all_same(xs, expected)


LOOKS = {  # at the device
    "synchronize": lambda x: torch.chameleon.synchronize(),
    "accelerator": lambda x: torch.accelerator.synchronize(),
    "stream": lambda x: torch.chameleon.current_stream().synchronize(),
    "query": lambda x: torch.chameleon.current_stream().query(),
    "event": lambda x: torch.Event("chameleon").record(),
    "swap_stats": lambda x: torch_chameleon.swap_stats(),
    "reset": lambda x: torch_chameleon.reset_swap_stats(),
    "memory": lambda x: torch.chameleon.memory_allocated(),
    "mem_get_info": lambda x: torch.chameleon.mem_get_info(),
    "empty_cache": lambda x: torch.chameleon.empty_cache(),
    "config": lambda x: setattr(
        torch_chameleon.config, "oversubscription", 8.0
    ),
    "evict": lambda x: _C.evict(x),
}


@pytest.mark.parametrize("look", LOOKS)
def test_who_looks_at_the_device_sees_all(look):
    with torch_chameleon.config.patch(oversubscription=4.0):
        xs, expected = put_off()
        LOOKS[look](xs[0])
        assert _testing.deferred_op_count() == 0
        assert not any(map(_testing.has_deferred_op, xs))
        assert all_same(xs, expected)


OTHERS = {
    "an op": lambda: torch.ones(3, device="chameleon").add_(1),
    "a copy": lambda: torch.ones(SHAPE).to("chameleon").cpu(),
    "empty": lambda: torch.empty(3, device="chameleon"),
    "step": lambda: torch_chameleon.step(),
    "last_step": lambda: torch_chameleon.profiler.last_step(),
}


@pytest.mark.parametrize("other", OTHERS)
def test_others_do_not_matter(other):
    torch_chameleon.step()
    xs, expected = put_off()
    OTHERS[other]()
    assert all(map(_testing.has_deferred_op, xs))
    assert all_same(xs, expected)


def test_resident_sees_it():
    xs, expected = put_off()
    with torch_chameleon.resident(xs[0]) as (native,):
        assert same_bits(native, expected[0])


@pytest.mark.parametrize("form", ["in place", "functional", "optimizer"])
def test_what_is_resident_is_not_put_off(form):
    """Its native tensor shows every byte, and finishes nothing."""
    xs = tensors("chameleon")
    expected = tensors("cpu")
    _C.evict_all(0)
    with torch_chameleon.resident(xs[1]) as (native,):
        if form == "in place":
            torch._foreach_mul_(xs, 3.0)
            assert _testing.deferred_op_count() == 0
            native.add_(1)
            expected = [x.mul(3.0) for x in expected]
            expected[1] += 1
        elif form == "functional":
            ys = torch._foreach_mul(xs, 3.0)
            native.zero_()
            assert all_same(ys, [x.mul(3.0) for x in expected])
            expected[1].zero_()
        else:
            for values in (xs, expected):
                for value in values:
                    value.grad = torch.ones_like(value)
            for values in (xs, expected):
                torch.optim.SGD(values, lr=0.5, foreach=True).step()
            assert same_bits(native, expected[1])
    assert all_same(xs, expected)
    _C.evict_all(0)
    torch._foreach_mul_([x.detach() for x in xs], 3.0)
    assert _testing.deferred_op_count() == 1  # the block is closed


def test_one_of_them_resident_at_the_end_of_a_run():
    """What was deferred before is executed when the block begins."""
    xs, expected = put_off()
    with torch_chameleon.resident(xs[0]) as (native,):
        assert same_bits(native, expected[0])
        torch._foreach_neg_(xs)
        assert same_bits(native, -expected[0])


def test_inference_mode():
    """Tensors made in it have no versions: its list ops run at once."""
    xs, expected = put_off()
    with torch.inference_mode():
        ys = torch._foreach_add(xs, 1.0)
        torch._foreach_mul_(xs, 2.0)
        assert _testing.deferred_op_count() == 0
    assert all_same(ys, [x + 1 for x in expected])
    assert all_same(xs, [x * 2 for x in expected])
    assert ys[0].is_inference()
    assert xs[0]._version == 2


@pytest.mark.parametrize(
    "around",
    [
        torch.inference_mode,
        torch.no_grad,
        lambda: torch.autocast("chameleon", torch.bfloat16),
        lambda: torch.device("cpu"),
        lambda: torch.autograd.forward_ad.dual_level(),
    ],
)
def test_a_run_is_executed_as_it_was_called(around):
    """Not as whoever executes it happens to run."""
    xs, expected = put_off()
    halves = torch._foreach_mul(xs, 0.5)
    with around():
        assert same_bits(xs[3].clone(), expected[3])
        torch.chameleon.synchronize()
        assert _testing.deferred_op_count() == 0
    assert all_same(xs, expected)
    assert all_same(halves, [x * 0.5 for x in expected])
    assert not halves[0].is_inference()
    halves[0].add_(1)
    assert (xs[0]._version, halves[0]._version) == (1, 1)


def test_views_and_metadata_do_not_matter():
    xs, expected = put_off()
    views = [x.view(-1)[:64] for x in xs]
    assert xs[0].shape == SHAPE
    assert xs[0].data_ptr() != 0
    xs[1].requires_grad_()
    assert _testing.deferred_op_count() == 1
    assert all_same(views, [x.view(-1)[:64] for x in expected])


def test_versions_count_when_the_op_returns():
    xs, ys = tensors("chameleon"), tensors("chameleon", 1)
    _C.evict_all(0)
    torch._foreach_mul_(xs, 2.0)
    torch._foreach_addcmul_(xs, ys, ys)
    made = torch._foreach_sqrt(xs)
    torch._foreach_add_(made, 1.0)
    assert _testing.deferred_op_count() == 4
    assert [t._version for t in (xs[0], ys[0], made[0])] == [2, 0, 1]
    torch.chameleon.synchronize()
    assert [t._version for t in (xs[0], ys[0], made[0])] == [2, 0, 1]


def test_gradients_flow_through_them():
    def run(device):
        xs = [x.requires_grad_() for x in tensors(device, count=3)]
        if device == "chameleon":
            _C.evict_all(0)
        made = torch._foreach_mul(torch._foreach_sqrt(xs), 3.0)
        made = torch._foreach_add(made, xs, alpha=0.5)
        if device == "chameleon":
            assert _testing.deferred_op_count() == 3
        assert all(m.requires_grad for m in made)
        sum(m.square().sum() for m in made).backward()
        return [x.grad for x in xs]

    assert all_same(run("chameleon"), run("cpu"))


def test_denormals_are_flushed_as_when_an_op_was_called():
    xs = [torch.full(SHAPE, 1e-38).to("chameleon") for _ in range(COUNT)]
    _C.evict_all(0)
    try:
        if not torch.set_flush_denormal(True):
            pytest.skip("this processor has no such flag")
        torch._foreach_mul_(xs, 0.5)
        assert _testing.deferred_op_count() == 1
    finally:
        torch.set_flush_denormal(False)
    torch._foreach_add_(xs, 1e-39)
    assert _testing.deferred_op_count() == 2
    denormal = torch.full(SHAPE, 1e-39)
    assert all_same(xs, [denormal] * COUNT)


# ---- tensors that come and go ----------------------------------------------


def test_results_exist_and_die_in_between():
    def run(device):
        xs, ys = tensors(device), tensors(device, 1)
        if device == "chameleon":
            _C.evict_all(0)
        roots = torch._foreach_sqrt(ys)
        torch._foreach_div_(roots, [1.0 + i for i in range(COUNT)])
        torch._foreach_add_(roots, 1e-8)
        torch._foreach_addcdiv_(xs, ys, roots, -0.1)
        gone = weakref.ref(roots[0])
        del roots
        assert gone() is None  # the run holds none of the user's tensors
        return xs, ys

    ours, native = run("chameleon"), run("cpu")
    assert _testing.deferred_op_count() == 4
    live = 2 * sum(x.nbytes for x in ours[0])
    assert torch.chameleon.memory_allocated() == live
    for one, other in zip(ours, native, strict=True):
        assert all_same(one, other)


def test_operands_die_in_between():
    xs, expected = put_off()
    ys = tensors("cpu", 5)
    others = tensors("chameleon", 5)
    _C.evict_all(0)
    torch._foreach_add_(xs, others)
    del others
    gc.collect()
    assert _testing.deferred_op_count() == 1
    torch._foreach_mul_(expected, 1.0)
    torch._foreach_add_(expected, ys)
    assert all_same(xs, expected)


def test_who_watches_an_operand_die_sees_the_others():
    xs, ys = tensors("chameleon"), tensors("chameleon", 1)
    expected = torch._foreach_add(tensors("cpu"), tensors("cpu", 1))
    seen = []
    for y in ys:
        weakref.finalize(y.untyped_storage(), lambda: seen.append(xs[-1].cpu()))
    _C.evict_all(0)
    torch._foreach_add_(xs, ys)
    del y, ys
    assert all_same(xs, expected)
    assert _testing.deferred_op_count() == 0
    assert all_same(seen, [expected[-1]] * COUNT)


def test_data_is_set_in_between():
    xs, expected = put_off()
    old = xs[0].detach()
    xs[0].data = torch.zeros(3, device="chameleon")
    assert same_bits(old, expected[0])
    xs, expected = put_off()
    with torch.no_grad():
        xs[0].set_(xs[1])
    torch._foreach_add_(xs, 1.0)  # one storage twice
    assert _testing.deferred_op_count() == 0
    expected = [x + 1 for x in expected]
    expected[1] += 1
    assert all_same(xs[1:], expected[1:])
    assert same_bits(xs[0], expected[1])


def test_one_storage_at_two_indices():
    def run(device):
        flat = torch.arange(1024.0, device=device)
        parts = list(flat.split(256))
        others = [torch.ones(256, device=device) for _ in parts]
        if device == "chameleon":
            _C.evict_all(0)
        torch._foreach_add_(others, 2.0)
        torch._foreach_mul_(parts, 3.0)
        torch._foreach_add_(parts, others)
        torch._foreach_add_(others, parts)
        torch._foreach_mul_([others[0]] * 4, 2.0)
        torch._foreach_add_(others, [others[1]] * 4)
        torch._foreach_add_(others, others)
        return [flat, *others]

    assert all_same(run("chameleon"), run("cpu"))


def test_one_scalar_tensor_for_all():
    def run(device):
        xs = tensors(device)
        scale = torch.tensor(3.0, device=device)
        scales = [scale, *(torch.tensor(1.0, device=device) for _ in xs[1:])]
        if device == "chameleon":
            _C.evict_all(0)
        torch._foreach_mul_(xs, scale)
        torch._foreach_add_(scales, 1.0)  # changes what the first op reads
        torch._foreach_mul_(xs, scale)
        return [*xs, *scales]

    assert all_same(run("chameleon"), run("cpu"))


def test_the_same_list_changes_length():
    def run(device):
        xs = tensors(device)
        if device == "chameleon":
            _C.evict_all(0)
        torch._foreach_mul_(xs, 3.0)
        torch._foreach_add_(xs[:5], xs[3:])
        torch._foreach_mul_(xs, xs[::-1])
        return xs

    assert all_same(run("chameleon"), run("cpu"))


# ---- what moves ------------------------------------------------------------


def test_a_run_moves_each_tensor_once():
    """8 ops over 4 lists of 2 MiB each, in 2 MiB of memory."""
    params, grads, firsts, seconds = (
        tensors("chameleon", seed, 16) for seed in range(4)
    )

    def step():
        torch._foreach_mul_(params, 0.99)
        torch._foreach_lerp_(firsts, grads, 0.1)
        torch._foreach_mul_(seconds, 0.99)
        torch._foreach_addcmul_(seconds, grads, grads, 0.01)
        roots = torch._foreach_sqrt(seconds)
        torch._foreach_div_(roots, [2.0] * 16)
        torch._foreach_add_(roots, 1e-8)
        torch._foreach_addcdiv_(params, firsts, roots, [-0.1] * 16)

    one_list = 16 * params[0].nbytes
    # Exact figures of what ops move by themselves.
    with torch_chameleon.config.patch(oversubscription=8.0, policy="lru"):
        step()  # what its kernels take is known then
        _C.evict_all(0)
        counted = moved(step)
    assert counted["bytes_in"] == 4 * one_list
    # Gradients have a host copy; the roots never leave.
    assert counted["bytes_out"] <= 3 * one_list
    assert counted["ops"] == 16 * 8  # a chunk is one index
