"""torch.autocast("chameleon"): the target's op lists, casts and cache.

On the cpu target the reference is torch.autocast("cpu") on the same calls, bit
for bit; CUDA's lists are compared on fake tensors, which need no GPU.
"""

import sys
import warnings

import pytest
import torch
from support import same_bits
from torch import nn
from torch.testing._internal.autocast_test_lists import (
    AutocastCPUTestLists,
    AutocastTestLists,
)
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from conformance.features.autocast_lists import listed
from conformance.harness.samples import samples_of

DTYPES = [torch.bfloat16, torch.float16]
PARTS = 12


def tensors(tree):
    return [x for x in tree_flatten(tree)[0] if isinstance(x, torch.Tensor)]


def copy_to(device, tree):
    def copy(value):
        if not isinstance(value, torch.Tensor):
            return value
        copied = value.detach().clone().to(device)
        return copied.requires_grad_(value.requires_grad)

    return tree_map(copy, tree)


def outcome(function, args, kwargs, device, dtype):
    """Results and gradients under autocast, or the type of what it raises."""
    args, kwargs = copy_to(device, (args, kwargs))
    torch.manual_seed(0)
    try:
        with torch.autocast(device, dtype):
            results = tensors(function(*args, **kwargs))
        sources = [x for x in tensors((args, kwargs)) if x.requires_grad]
        roots = [x.float().sum() for x in results if x.requires_grad]
        if roots and sources:
            results += torch.autograd.grad(roots, sources, allow_unused=True)
        return results
    except Exception as error:
        return type(error)


def same_outcome(native, ours):
    if isinstance(native, type) or isinstance(ours, type):
        return native is ours
    return len(native) == len(ours) and all(
        a is b if a is None or b is None else same_bits(a, b)
        for a, b in zip(native, ours, strict=True)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lists", [AutocastCPUTestLists, AutocastTestLists])
def test_every_listed_op(lists, dtype):
    """Ops of the CPU's lists are cast as there, ops of CUDA's only are not."""
    torch.manual_seed(0)
    different = []
    count = 0
    for name, function, args, kwargs in listed(lists("cpu")):
        native = outcome(function, args, kwargs, "cpu", dtype)
        ours = outcome(function, args, kwargs, "chameleon", dtype)
        count += not isinstance(native, type)
        if not same_outcome(native, ours):
            different.append((name, native, ours))
    assert different == []
    assert count > 50


def operator_names(key):
    return {
        name
        for name in torch._C._dispatch_get_registrations_for_dispatch_key(key)
        if name.startswith("aten::")
    }


def test_every_op_of_both_lists_is_registered():
    """torch's own registrations, so that a new torch shows what it adds."""
    cuda_library = {  # never called with tensors of this device
        "aten::_cudnn_rnn",
        "aten::cudnn_convolution",
        "aten::cudnn_convolution_transpose",
    }
    layers = {
        f"aten::{layer}.{form}"
        for layer in ("lstm", "gru", "rnn_tanh", "rnn_relu")
        for form in ("input", "data")
    }
    lists = operator_names("AutocastCPU") | operator_names("AutocastCUDA")
    assert operator_names("AutocastPrivateUse1") == (
        lists - cuda_library | layers
    )


def op_names(key):
    return {
        name.removeprefix("aten::").split(".")[0]
        for name in operator_names(key)
    }


def database(listed_only):
    """Database entries, their aliases and composites of listed ops too."""
    names = op_names("AutocastCPU") | op_names("AutocastCUDA")
    return [
        op
        for op in op_db
        if not listed_only
        or op.name.split(".")[-1] in names
        or op.name.replace(".", "_") in names
    ]


# Not comparable, each with its reason.
UNFIT = {
    "empty_like": "uninitialised memory",
    "empty": "uninitialised memory",
    "empty_permuted": "uninitialised memory",
    "empty_strided": "uninitialised memory",
    "new_empty": "uninitialised memory",
    "new_empty_strided": "uninitialised memory",
    "tensor_split": "its samples put indices on the device; they must be CPU",
    "linalg_lstsq": "native itself varies with the operands' addresses",
    "linalg_lstsq_grad_oriented": "the same",
    "chalf": "the CPU cannot compare complex32",
}


def compare_entries(ops, samples, operand_dtype, dtype):
    different = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in ops:
            if op.formatted_name in UNFIT or operand_dtype not in op.dtypes:
                continue
            drawn = samples_of(
                op, operand_dtype, requires_grad=op.supports_autograd
            )
            for _, sample in zip(range(samples), drawn, strict=False):
                args = (sample.input, *sample.args)
                if "device" in sample.kwargs:
                    continue
                native, ours = (
                    outcome(op, args, sample.kwargs, device, dtype)
                    for device in ("cpu", "chameleon")
                )
                if not same_outcome(native, ours):
                    different.append((op.formatted_name, native, ours))
    return different


@pytest.mark.parametrize("operand_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("part", range(PARTS))
def test_database_entries_with_listed_names(part, operand_dtype):
    ops = database(listed_only=True)[part::PARTS]
    assert compare_entries(ops, 1, operand_dtype, torch.bfloat16) == []


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "operand_dtype",
    [torch.float32, torch.bfloat16, torch.float16, torch.float64],
)
def test_database(operand_dtype, dtype):
    assert compare_entries(database(False), 5, operand_dtype, dtype) == []


FAKE = (
    f"""
import sys
sys.path[:0] = {[*sys.path]}
"""
    + """
import warnings
import torch, torch_chameleon
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_flatten
from conformance.features.autocast_lists import listed
from torch.testing._internal.autocast_test_lists import AutocastTestLists

def dtypes(device):
    found = {}
    with FakeTensorMode():
        for index, (name, function, args, kwargs) in enumerate(
            listed(AutocastTestLists(device))
        ):
            torch.set_autocast_enabled(device, True)
            try:
                results, _ = tree_flatten(function(*args, **kwargs))
                found[index] = name, [getattr(x, "dtype", x) for x in results]
            except Exception as error:
                found[index] = name, type(error)
            torch.set_autocast_enabled(device, False)
    return found

warnings.simplefilter("ignore")
native, ours = dtypes("cuda"), dtypes("chameleon")
different = [
    (native[i], ours[i])
    for i in native
    if native[i] != ours[i] and not isinstance(native[i][1], type)
]
print(len(native), different)
"""
)


def test_lists_on_cuda(fresh):
    """Result dtypes equal CUDA's where the target will be CUDA."""
    count, different = fresh(FAKE, CHAMELEON_PHYSICAL_DEVICE="cuda").split(
        maxsplit=1
    )
    assert different == "[]"
    assert int(count) > 100


class Casts(TorchDispatchMode):
    """Counts the casts that reach the device."""

    count = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.count += op is torch.ops.aten._to_copy.default
        return op(*args, **(kwargs or {}))


def casts(device, action):
    weight, x = weight_and_input(device)
    with Casts() as counter:
        action(device, weight, x)
    return counter.count


def weight_and_input(device):
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(4, 4)).to(device).detach()
    return weight.requires_grad_(), torch.randn(4, 4).to(device)


def cache_in_a_region(device, weight, x):
    with torch.autocast(device, torch.bfloat16):
        for _ in range(5):
            torch.mm(x, weight)


def cache_across_nested_regions(device, weight, x):
    with torch.autocast(device, torch.bfloat16):
        torch.mm(x, weight)
        with torch.autocast(device, torch.bfloat16):
            torch.mm(x, weight)
        torch.mm(x, weight)
    with torch.autocast(device, torch.bfloat16):
        torch.mm(x, weight)


def cache_switched_off(device, weight, x):
    with torch.autocast(device, torch.bfloat16, cache_enabled=False):
        for _ in range(5):
            torch.mm(x, weight)


def cache_without_gradients(device, weight, x):
    with torch.no_grad(), torch.autocast(device, torch.bfloat16):
        for _ in range(3):
            torch.mm(x, weight)


def not_leaves(device, weight, x):
    with torch.autocast(device, torch.bfloat16):
        for _ in range(3):
            torch.mm(x, weight * 2)


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (cache_in_a_region, 6),
        (cache_across_nested_regions, 6),
        (cache_switched_off, 10),
        (cache_without_gradients, 4),
        (not_leaves, 6),
    ],
)
def test_cache(action, expected):
    """A leaf that requires grad is cast once a region, as natively."""
    assert casts("cpu", action) == expected
    assert casts("chameleon", action) == expected


def test_cache_is_emptied_with_the_region():
    before = torch.chameleon.memory_allocated()
    weight, x = weight_and_input("chameleon")
    with torch.autocast("chameleon", torch.bfloat16):
        torch.mm(x, weight)
        cached = torch.chameleon.memory_allocated()
    assert cached - torch.chameleon.memory_allocated() == 4 * 4 * 2
    del weight, x
    assert torch.chameleon.memory_allocated() == before


def test_regions_nest():
    def dtypes(device):
        # No gradients: torch caches casts by tensor, not by dtype.
        weight, x = (t.detach() for t in weight_and_input(device))
        found = []

        def look():
            found.append(
                (
                    torch.mm(x, weight).dtype,
                    torch.is_autocast_enabled(device),
                    torch.get_autocast_dtype(device),
                )
            )

        with torch.autocast(device, torch.bfloat16):
            look()
            with torch.autocast(device, torch.float16):
                look()
                with torch.autocast(device, enabled=False):
                    look()
                look()
            with torch.autocast(device, torch.bfloat16, enabled=False):
                look()
            look()
        with pytest.raises(ZeroDivisionError), torch.autocast(device):
            raise ZeroDivisionError
        found.append(torch.is_autocast_enabled(device))
        return found

    native = dtypes("cpu")
    assert dtypes("chameleon")[:-1] == native[:-1]
    assert native[-1] is False
    assert [entry[0] for entry in native[:-1]] == [
        torch.bfloat16,
        torch.float16,
        torch.float32,
        torch.float16,
        torch.float32,
        torch.bfloat16,
    ]


def test_regions_of_other_devices_do_not_mix():
    x = torch.ones(2, 2, device="chameleon")
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.mm(x, x).dtype is torch.float32
    y = torch.ones(2, 2)
    with torch.autocast("chameleon", torch.bfloat16):
        assert torch.mm(y, y).dtype is torch.float32


def test_default_dtype():
    """torch fixes it for every PrivateUse1 device; it is CUDA's."""
    assert torch.get_autocast_dtype("chameleon") is torch.float16
    x = torch.ones(2, 2, device="chameleon")
    with torch.autocast("chameleon"):
        assert torch.mm(x, x).dtype is torch.float16


def test_other_dtypes_switch_it_off_with_a_warning():
    x = torch.ones(2, 2, device="chameleon")
    with (
        pytest.warns(UserWarning, match="only supports dtypes of"),
        torch.autocast("chameleon", torch.float64),
    ):
        assert torch.mm(x, x).dtype is torch.float32


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.int64])
def test_what_is_not_eligible_stays(dtype):
    x = torch.ones(2, 2, device="chameleon", dtype=dtype)
    with torch.autocast("chameleon", torch.bfloat16):
        assert torch.mm(x, x).dtype is dtype


def test_promotion():
    def results(device):
        half = torch.arange(4, device=device, dtype=torch.bfloat16)
        single = torch.arange(4, device=device, dtype=torch.float32)
        with torch.autocast(device, torch.bfloat16):
            return [
                torch.cat([half, single]),
                torch.stack([half, half]),
                torch.index_copy(
                    single, 0, torch.tensor([1], device=device), half[:1]
                ),
            ]

    assert all(map(same_bits, results("cpu"), results("chameleon")))


def test_promotion_of_another_half_is_refused():
    def raised(device):
        other = torch.ones(2, device=device, dtype=torch.float16)
        with (
            torch.autocast(device, torch.bfloat16),
            pytest.raises(RuntimeError) as error,
        ):
            torch.cat([other, other])
        return str(error.value)

    assert raised("chameleon") == raised("cpu")


def test_as_a_decorator_and_in_a_thread():
    """The state belongs to a thread; a decorated function sets its own."""
    import threading

    x = torch.ones(2, 2, device="chameleon")
    plain = []

    @torch.autocast("chameleon", torch.bfloat16)
    def decorated():
        thread = threading.Thread(
            target=lambda: plain.append(torch.mm(x, x).dtype)
        )
        thread.start()
        thread.join()
        return torch.mm(x, x).dtype

    assert decorated() is torch.bfloat16
    assert plain == [torch.float32]


class Plain(torch.autograd.Function):
    """A matrix product that records what dtypes it sees."""

    seen: list[object] = []  # noqa: RUF012

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        result = a.mm(b)
        Plain.seen.append((a.dtype, b.dtype, result.dtype))
        return result

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        product = grad.mm(b.t())
        Plain.seen.append((grad.dtype, product.dtype))
        return product, a.t().mm(grad)


def decorated(device, cast_inputs):
    class Decorated(Plain):
        forward = staticmethod(
            torch.amp.custom_fwd(
                Plain.forward, device_type=device, cast_inputs=cast_inputs
            )
        )
        backward = staticmethod(
            torch.amp.custom_bwd(Plain.backward, device_type=device)
        )

    return Decorated


@pytest.mark.parametrize("cast_inputs", [None, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("enabled", [True, False])
def test_custom_functions(cast_inputs, enabled):
    """custom_fwd and custom_bwd: backward in the state of forward."""

    def run(device):
        Plain.seen = []
        a, b = (x.detach() for x in weight_and_input(device))
        a, b = a.requires_grad_(), b.half().requires_grad_()
        if not enabled:
            b = b.detach().float().requires_grad_()
        with torch.autocast(device, torch.bfloat16, enabled=enabled):
            result = decorated(device, cast_inputs).apply(a, b)
        result.float().sum().backward()
        return [result, a.grad, b.grad], Plain.seen

    native, native_seen = run("cpu")
    ours, ours_seen = run("chameleon")
    assert native_seen == ours_seen
    assert all(map(same_bits, native, ours))


MODELS = {
    "convolutions": lambda: (
        nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.ConvTranspose2d(8, 4, 2),
            nn.GroupNorm(2, 4),
            nn.PReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(16, 5),
        ),
        torch.randn(4, 3, 8, 8),
    ),
    "transformer": lambda: (
        nn.TransformerEncoderLayer(16, 4, 32, 0.1, batch_first=True),
        torch.randn(4, 6, 16),
    ),
    "lstm": lambda: (nn.LSTM(8, 12, 2, dropout=0.2), torch.randn(5, 3, 8)),
    "lstm_projected": lambda: (
        nn.LSTM(8, 12, proj_size=4, bidirectional=True),
        torch.randn(5, 3, 8),
    ),
    "gru": lambda: (nn.GRU(8, 12, bidirectional=True), torch.randn(5, 3, 8)),
    "rnn": lambda: (nn.RNN(8, 12), torch.randn(5, 3, 8)),
    "gru_cell": lambda: (nn.GRUCell(8, 12), torch.randn(3, 8)),
    "lstm_cell": lambda: (nn.LSTMCell(8, 12), torch.randn(3, 8)),
    "rnn_cell": lambda: (
        nn.RNNCell(8, 12, nonlinearity="relu"),
        torch.randn(3, 8),
    ),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("train", [True, False])
def test_models(name, dtype, train):
    """Results, dtypes and gradients of whole layers."""

    def run(device):
        torch.manual_seed(0)
        model, x = MODELS[name]()
        model = model.to(device).train(train)
        x = x.to(device).requires_grad_(train)
        with torch.set_grad_enabled(train), torch.autocast(device, dtype):
            results = tensors(model(x))
        if train:
            loss = sum(result.float().square().sum() for result in results)
            loss.backward()
            results += [x.grad, *(p.grad for p in model.parameters())]
        return results

    try:
        native = run("cpu")
    except RuntimeError:
        with pytest.raises(RuntimeError):
            run("chameleon")
        return
    assert all(map(same_bits, native, run("chameleon")))
