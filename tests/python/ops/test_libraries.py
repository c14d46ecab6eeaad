"""Ops of torch.library.Library: their schemas and kernels come and go."""

import warnings

import pytest
import torch
from support import MIB, on_both, same_bits, values
from torch_chameleon import _testing

pytestmark = pytest.mark.usefixtures("stress")

# ---- torch.library.Library


def test_all_kinds_of_arguments_and_results(library):
    ours = library()
    ours.define(
        "kinds(Tensor[] xs, Tensor? maybe, Tensor?[] some, int n=2, *, "
        "float[] scales, str how, ScalarType? dtype=None) "
        "-> (Tensor, Tensor[], int, float[], str, Tensor)"
    )

    def kinds(xs, maybe, some, n=2, *, scales, how, dtype=None):
        assert maybe is None
        assert some[0] is None
        return (
            torch.stack(xs).to(dtype),
            [x * n for x in xs],
            n + 1,
            scales,
            how,
            some[1],
        )

    ours.impl("kinds", kinds, "CPU")

    def run(device):
        xs = [values(device, 3, seed=seed) for seed in range(3)]
        first, rest, *others = torch.ops.chameleon_test.kinds(
            [*xs, xs[0]],
            None,
            [None, xs[1]],
            scales=[1.0, 2.0],
            how="well",
            dtype=torch.float64,
        )
        assert others[-1].data_ptr() == xs[1].data_ptr()
        return first, *rest, *others

    on_both(run)


def test_out_argument_is_resized(library):
    ours = library()
    ours.define("twice(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
    ours.impl(
        "twice", lambda x, *, out: out.resize_(x.shape).copy_(x * 2), "CPU"
    )

    def run(device):
        out = torch.empty(0, device=device)
        result = torch.ops.chameleon_test.twice(values(device, 4), out=out)
        assert result is out
        return [out]

    on_both(run)


def test_in_place_op_counts_its_write(library):
    ours = library()
    ours.define("bump_(Tensor(a!) x, Tensor(b!)[] more) -> ()")

    def bump_(x, more):
        x.add_(1)
        for one in more:
            one.mul_(2)

    ours.impl("bump_", bump_, "CPU")

    def run(device):
        x, y = values(device, 3), values(device, 3, seed=1)
        before = x._version, y._version
        torch.ops.chameleon_test.bump_(x, [y])
        return x, y, x._version - before[0], y._version - before[1]

    on_both(run)


def test_views(library):
    ours = library()
    ours.define("row(Tensor(a) x, int i) -> Tensor(a)")
    ours.define("rows(Tensor(a) x) -> Tensor(a)[]")
    ours.impl("row", lambda x, i: x[i], "CPU")
    ours.impl("rows", lambda x: list(x.unbind()), "CPU")

    def run(device):
        x = values(device, 3, 4).requires_grad_()
        base = x * 1
        before = base._version
        row = torch.ops.chameleon_test.row(base, 1)
        rows = torch.ops.chameleon_test.rows(base)
        assert row._is_view()
        assert row._base is base
        assert row.data_ptr() == rows[1].data_ptr()
        row.mul_(3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no derivative is registered
            gradient = torch.autograd.grad(base.sum(), x)
        return base, row, base._version - before, *gradient

    on_both(run)


def test_generator(library):
    ours = library()
    ours.define("noise(Tensor x, Generator? g=None) -> Tensor")
    ours.impl("noise", lambda x, g=None: torch.rand_like(x, generator=g), "CPU")

    def run(device):
        own = torch.Generator(device).manual_seed(5)
        torch.manual_seed(6)
        noise = torch.ops.chameleon_test.noise
        x = values(device, 4)
        return noise(x, own), noise(x), own.initial_seed()

    on_both(run)


def test_autograd_function_at_the_autograd_key(library):
    ours = library()
    ours.define("squared(Tensor x) -> Tensor")
    squared = torch.ops.chameleon_test.squared

    class Squared(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            with torch._C._AutoDispatchBelowAutograd():
                return squared(x)

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2 * ctx.saved_tensors[0]

    ours.impl("squared", Squared.apply, "Autograd")
    ours.impl("squared", lambda x: x * x, "CPU")

    def run(device):
        x = values(device, 3).requires_grad_()
        y = squared(x)
        return y, *torch.autograd.grad(y.sum(), x)

    on_both(run)


def test_kernel_after_the_schema(library):
    library().define("later(Tensor x) -> Tensor")
    x = torch.zeros(2, device="chameleon")
    with pytest.raises(
        NotImplementedError,
        match=r"chameleon_test::later has no kernel for CPU, which computes",
    ):
        torch.ops.chameleon_test.later(x)
    library().impl("later", lambda x: x + 1, "CPU")
    assert torch.ops.chameleon_test.later(x).tolist() == [1, 1]


def test_fallthrough_is_no_kernel(library):
    ours = library()
    ours.define("through(Tensor x) -> Tensor")
    ours.impl("through", torch.library.fallthrough_kernel, "CPU")
    with pytest.raises(NotImplementedError, match="through has no kernel"):
        torch.ops.chameleon_test.through(torch.ones(1, device="chameleon"))


@pytest.mark.parametrize("agnostic", [False, True])
def test_library_that_comes_back_with_another_schema(agnostic, library):
    """The plan of an op goes with its schema."""
    x = torch.ones(1, device="chameleon")
    bodies = [
        ("f(Tensor x) -> Tensor", lambda x: x + 1),
        (
            "f(int n, Tensor x, Tensor(a!) y) -> ()",
            lambda n, x, y: [y.add_(x * n)].clear(),
        ),
        (
            "f(Tensor[] xs) -> (Tensor, Tensor)",
            lambda xs: (xs[0] + 3, xs[1] + 4),
        ),
    ]
    seen = []
    for schema, body in bodies * 2:
        ours = library("chameleon_reborn", "DEF")
        ours.define(schema)
        if agnostic:
            ours.impl("f", body, "CompositeExplicitAutograd")

        def counted(*arguments, body=body):
            seen.append(1)
            return body(*arguments)

        ours.impl("f", counted, "CPU")
        f = torch.ops.chameleon_reborn.f
        if "int" in schema:
            y = torch.ones(1, device="chameleon")
            f(3, x, y)
            assert y.item() == 4
        elif "[]" in schema:
            assert [r.item() for r in f([x, x])] == [4, 5]
        else:
            assert f(x).item() == 2
        del f
        ours._destroy()
    assert len(seen) == 6


def test_reborn_as_a_decomposition(library):
    """A kernel of ours that outlived its op would stop the derivative."""
    for _ in range(2):
        ours = library("chameleon_reborn", "DEF")
        ours.define("g(Tensor x) -> Tensor")
        ours.impl("g", lambda x: x + 1, "CompositeExplicitAutograd")
        ours.impl("g", lambda x: x + 2, "CPU")
        x = torch.ones(1, device="chameleon")
        assert torch.ops.chameleon_reborn.g(x).item() == 3
        ours._destroy()
        ours = library("chameleon_reborn", "DEF")
        ours.define("g(Tensor x) -> Tensor")
        ours.impl("g", lambda x: x.exp(), "CompositeImplicitAutograd")
        x.requires_grad_()
        torch.ops.chameleon_reborn.g(x).sum().backward()
        assert same_bits(x.grad, x.exp())
        ours._destroy()


def test_kernel_of_an_op_of_torch(library):
    ours = library("aten", "IMPL")
    x = torch.ones(1, device="chameleon")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours.impl("sinh", lambda x: torch.full_like(x, 42), "CPU")
    assert x.sinh().item() == 42
    ours._destroy()
    assert same_bits(x.sinh(), x.cpu().sinh())


# ---- what kernels do besides


def test_kernel_that_uses_the_device_itself(library, tight, stress):
    """A call inside a call, with room for both and eviction between."""
    tables = [torch.arange(MIB, dtype=torch.float32, device="chameleon")]
    ours = library()
    ours.define("looks_up(Tensor x) -> Tensor")
    ours.impl("looks_up", lambda x: x + (tables[0] * 2).sum().item(), "CPU")
    x = torch.ones(MIB, device="chameleon")
    expected = 1 + (tables[0].cpu() * 2).sum().item()
    tight(20 * MIB)
    result = torch.ops.chameleon_test.looks_up(x)
    assert result.eq(expected).all().item()
    tables.clear()  # torch never lets go of a kernel written in Python


def test_kept_operand_raises(library):
    kept = []
    ours = library()
    ours.define("keeps(Tensor x) -> Tensor")
    ours.impl("keeps", lambda x: kept.append(x) or x + 1, "CPU")
    x = torch.ones(3, device="chameleon")
    assert torch.ops.chameleon_test.keeps(x).sum().item() == 6
    for use in (lambda t: t + 1, lambda t: t.data_ptr(), lambda t: t.numpy()):
        with pytest.raises(RuntimeError, match="resident"):
            use(kept[-1])
    assert torch.ops.chameleon_test.keeps(x).sum().item() == 6


def test_kept_result_stays(library):
    cache = {}
    ours = library()
    ours.define("cached(Tensor x) -> Tensor")

    def cached(x):
        if "table" not in cache:
            cache["table"] = torch.arange(3.0)
        return x + cache["table"]

    ours.impl("cached", cached, "CPU")
    for _ in range(3):
        x = torch.ones(3, device="chameleon")
        y = torch.ops.chameleon_test.cached(x)
        assert y.tolist() == [1, 2, 3]
    assert cache.pop("table").tolist() == [0, 1, 2]  # kernels never die


def test_returned_result_that_the_kernel_keeps(library):
    cache = {"made before": torch.arange(3.0)}
    ours = library()
    ours.define("table(Tensor x, str key) -> Tensor")
    ours.define("tables(Tensor x) -> Tensor[]")
    ours.impl(
        "table", lambda x, key: cache.setdefault(key, x.new_ones(3)), "CPU"
    )
    ours.impl("tables", lambda x: [cache["made before"].view(3)] * 2, "CPU")
    x = torch.ones(3, device="chameleon")
    for _ in range(2):
        for key, expected in (("made before", [0, 1, 2]), ("inside", [1] * 3)):
            y = torch.ops.chameleon_test.table(x, key)
            assert y.is_chameleon
            y.add_(1)
            assert y.tolist() == [value + 1 for value in expected]
            assert cache[key].tolist() == expected
        for y in torch.ops.chameleon_test.tables(x):
            assert y.tolist() == [0, 1, 2]
    cache.clear()


def test_exception_in_a_kernel(library):
    class OwnError(Exception):
        pass

    def fails(x):
        x.add_(1)
        raise OwnError("why")

    ours = library()
    ours.define("fails(Tensor(a!) x) -> Tensor")
    ours.impl("fails", fails, "CPU")
    x = torch.ones(3, device="chameleon")
    with pytest.raises(OwnError, match="why"):
        torch.ops.chameleon_test.fails(x)
    assert x.tolist() == [2, 2, 2]  # written natively too
    assert _testing.block_state(x)["pins"] == 0


def test_mixed_devices_raise(library):
    ours = library()
    ours.define("mixes(Tensor x, Tensor y) -> Tensor")
    ours.impl("mixes", lambda x, y: x + y, "CPU")
    x = torch.ones(3, device="chameleon")
    with pytest.raises(RuntimeError, match="chameleon:0 and cpu"):
        torch.ops.chameleon_test.mixes(x, torch.ones(3))


@pytest.mark.parametrize("named_by", ["name", "overload"])
def test_overloads(library, named_by):
    ours = library()
    ours.define("over(Tensor x) -> Tensor")
    ours.define("over.more(Tensor x, int n) -> Tensor")
    ours.impl("over.more", lambda x, n: x + n, "CompositeExplicitAutograd")
    name = "over.more"
    if named_by == "overload":
        name = torch.ops.chameleon_test.over.more
    ours.impl(name, lambda x, n: x - n, "CPU")
    x = torch.zeros(1, device="chameleon")
    assert torch.ops.chameleon_test.over(x, 3).item() == -3


@pytest.mark.slow
def test_library_loaded_before_the_package(fresh):
    code = """
import torch
from torch.library import Library
library = Library("early", "DEF")
library.define("row(Tensor(a) x) -> Tensor(a)")
library.impl("row", lambda x: x[0], "CPU")
library.define("both(Tensor x) -> Tensor")
library.impl("both", lambda x: x + 1, "CompositeExplicitAutograd")
library.impl("both", lambda x: x + 2, "CPU")
import torch_chameleon
x = torch.zeros(2, device="chameleon")
print(torch.ops.early.row(x)._base is x, torch.ops.early.both(x).tolist())
library._destroy()
library = Library("early", "DEF")
library.define("both(int n, Tensor x) -> Tensor")
library.impl("both", lambda n, x: x + n, "CPU")
print(torch.ops.early.both(3, x).tolist())
"""
    assert fresh(code).splitlines() == ["True [2.0, 2.0]", "[3.0, 3.0]"]
