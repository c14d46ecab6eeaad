"""Deterministic mode and torch.backends' flags: honoured as natively.

Which ops alert in deterministic mode is the kernels' business: they ask the
global context themselves (`alertNotDeterministic`), on the physical device's
dispatch key, and nothing between the dispatcher and them catches, clears or
changes that. Checked here with the CPU as the physical device, whose list is
shorter than CUDA's: the ops on it raise the native sentence, having written
nothing; with `warn_only` every entry of the operator database runs the same
calls and gives the same errors and warnings as natively (one sample of each by
default). Ops that alert on CUDA alone run no CUDA kernel here and are not
checked by these tests.
"""

import contextlib
import warnings

import pytest
import torch
from support import same_bits
from torch import nn

from conformance.harness.counting import count
from conformance.harness.parity_cases import dtype_of, op_cases, op_entries
from conformance.harness.recorded import kernels_of, ops_of, renamed

PARTS = 4

# Entries that differ in deterministic mode.
DIFFERENT = dict.fromkeys(
    [
        "nn_functional_interpolate_bilinear",
        "nn_functional_interpolate_trilinear",
        "nn_functional_upsample_bilinear",
    ],
    "torch/nn/functional.py:4870 and :4890 ask `not input.is_cpu` and take a "
    "decomposition in Python, which no kernel can undo",
)


@contextlib.contextmanager
def deterministic(warn_only=False):
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


# ---- deterministic mode


def seen(case, device):
    """What runs, what it raises, what it warns of."""
    run = case.on(device)
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        calls, error = ops_of(run)
    torch.set_warn_always(always)
    texts = {str(warning.message).split(" (Trigg")[0] for warning in warned}
    return calls, type(error), str(error).replace(device, "here"), texts


def check_deterministic_mode(ops, limit, warn_only):
    found = {}
    for op in ops:
        for case in op_cases(op, dtype_of(op), limit):
            with deterministic(warn_only):
                native, ours = seen(case, "cpu"), seen(case, "chameleon:0")
            row = found.setdefault(case.name, [])
            row.append(None if native == ours else (native[1:], ours[1:]))
    for name, rows in found.items():
        passed = not any(rows)
        excused = not passed and name in DIFFERENT
        count("deterministic", "", "never", passed, excused, len(rows))
    different = {name: rows for name, rows in found.items() if any(rows)}
    assert different.keys() == DIFFERENT.keys() & found.keys(), different


@pytest.mark.sample
@pytest.mark.parametrize("part", range(PARTS))
def test_sample_in_deterministic_mode(part):
    check_deterministic_mode(op_entries()[part::PARTS], 1, warn_only=True)


@pytest.mark.slow
@pytest.mark.parametrize("warn_only", [True, False])
@pytest.mark.parametrize("part", range(4 * PARTS))
def test_operators_in_deterministic_mode(part, warn_only):
    ops = op_entries()[part :: 4 * PARTS]
    check_deterministic_mode(ops, None, warn_only)


# What natively raises on the CPU (torch.use_deterministic_algorithms).
RAISES = {
    "max_unpool1d": lambda x, i: nn.functional.max_unpool1d(x[0], i[0], 2),
    "max_unpool2d": lambda x, i: nn.functional.max_unpool2d(x, i, 2),
    "max_unpool3d": lambda x, i: nn.functional.max_unpool3d(
        x[None], i[None], 2
    ),
    "put_": lambda x, i: x.put_(i, x.clone()),
    "put": lambda x, i: x.put(i, x),
}


@pytest.mark.parametrize("name", RAISES)
def test_deterministic_mode_raises(name):
    def call(device):
        x = torch.ones(1, 2, 2, device=device)
        index = torch.arange(4, device=device).view(x.shape)
        with pytest.raises(RuntimeError) as raised, deterministic():
            RAISES[name](x, index)
        assert torch.equal(x.cpu(), torch.ones(1, 2, 2))
        return str(raised.value)

    native = call("cpu")
    assert "does not have a deterministic implementation" in native
    assert call("chameleon") == native


EMPTY = {
    "empty": lambda device, dtype: torch.empty(5, dtype=dtype, device=device),
    "strided": lambda device, dtype: torch.empty_strided(
        (2, 3), (1, 2), dtype=dtype, device=device
    ),
    "like": lambda device, dtype: torch.empty_like(
        torch.ones(4, dtype=dtype, device=device)
    ),
    "new": lambda device, dtype: torch.ones(
        1, dtype=dtype, device=device
    ).new_empty(3),
    "resize": lambda device, dtype: torch.ones(
        2, dtype=dtype, device=device
    ).resize_(7),
    "smaller": lambda device, dtype: torch.ones(
        5, dtype=dtype, device=device
    ).resize_(2),
    "out": lambda device, dtype: torch.empty(
        4, out=torch.ones(2, dtype=dtype, device=device)
    ),
    "channels last": lambda device, dtype: torch.empty(
        (1, 2, 3, 4),
        dtype=dtype,
        device=device,
        memory_format=torch.channels_last,
    ),
}


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, torch.complex64, torch.int16, torch.bool],
    ids=str,
)
@pytest.mark.parametrize("make", EMPTY)
def test_deterministic_mode_fills_new_memory(make, dtype):
    with deterministic():
        native = EMPTY[make]("cpu", dtype)
        ours = EMPTY[make]("chameleon", dtype)
    assert same_bits(native, ours)
    assert native.stride() == ours.stride()
    assert native._version == ours._version


def test_fill_can_be_switched_off(monkeypatch):
    monkeypatch.setattr(
        torch.utils.deterministic, "fill_uninitialized_memory", False
    )
    with deterministic():
        for device in ("cpu", "chameleon"):
            grown = torch.ones(2, device=device).resize_(4)
            assert grown[:2].eq(1).all()
            assert torch.empty(2, device=device)._version == 0


# ---- torch.backends


def rand(*size):
    return torch.rand(*size).requires_grad_()


def layer(module, *inputs):
    """A module's forward and backward, on a device."""

    def prepare(device):
        torch.manual_seed(0)
        copy = module().to(device)
        given = [value.detach().to(device) for value in inputs]
        leaves = [value.requires_grad_() for value in given]

        def run():
            torch.manual_seed(0)
            output = copy(*given)
            output = output[0] if isinstance(output, tuple) else output
            wanted = [*leaves, *copy.parameters()]
            gradients = torch.autograd.grad(output.square().sum(), wanted)
            return [output, *gradients]

        return run

    return prepare


class Einsum(nn.Module):
    def forward(self, a, b, c):
        return torch.einsum("ij,jk,kl->il", a, b, c)


LAYERS = {
    "linear": layer(lambda: nn.Linear(16, 8), rand(4, 16)),
    "conv": layer(lambda: nn.Conv2d(4, 6, 3, groups=2), rand(2, 4, 9, 9)),
    "transposed": layer(lambda: nn.ConvTranspose2d(4, 6, 3), rand(2, 4, 5, 5)),
    "conv3d": layer(lambda: nn.Conv3d(2, 3, 2), rand(1, 2, 4, 4, 4)),
    "depthwise": layer(lambda: nn.Conv1d(4, 4, 3, groups=4), rand(2, 4, 9)),
    "batch norm": layer(lambda: nn.BatchNorm2d(4), rand(2, 4, 5, 5)),
    "lstm": layer(lambda: nn.LSTM(4, 3, 2, dropout=0.5), rand(5, 2, 4)),
    "gru": layer(lambda: nn.GRU(4, 3, bidirectional=True), rand(5, 2, 4)),
    "rnn": layer(lambda: nn.RNN(4, 3, batch_first=True), rand(2, 5, 4)),
    "attention": layer(
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        rand(2, 6, 8),
    ),
    "einsum": layer(Einsum, rand(20, 30), rand(30, 5), rand(5, 40)),
    "gelu": layer(nn.GELU, rand(4, 5)),
    "max pool": layer(lambda: nn.MaxPool2d(2), rand(2, 3, 8, 8)),
}


@contextlib.contextmanager
def matmul_precision(name):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def attribute(module, name, value):
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


FLAGS = {
    "default": contextlib.nullcontext,
    "mkldnn off": lambda: torch.backends.mkldnn.flags(enabled=False),
    "mkldnn deterministic": lambda: torch.backends.mkldnn.flags(
        deterministic=True
    ),
    "mkldnn tf32": lambda: torch.backends.mkldnn.flags(allow_tf32=True),
    "nnpack off": lambda: torch.backends.nnpack.flags(enabled=False),
    "matmul medium": lambda: matmul_precision("medium"),
    "matmul high": lambda: matmul_precision("high"),
    "opt_einsum off": lambda: attribute(
        torch.backends.opt_einsum, "enabled", False
    ),
    "opt_einsum optimal": lambda: attribute(
        torch.backends.opt_einsum, "strategy", "optimal"
    ),
    "mha fast path off": lambda: fast_path_off(),
    "deterministic": deterministic,
    "inference": torch.no_grad,
}


@contextlib.contextmanager
def fast_path_off():
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_under_flags(name, flag):
    runs = [
        lambda device=device: LAYERS[name](device)
        for device in ("cpu", "chameleon")
    ]
    with FLAGS[flag]():
        native, ours = kernels_of(runs)
        assert renamed(ours[0]) == native[0]
        assert type(ours[1]) is type(native[1])
        if native[1] is None:
            native, ours = (run()() for run in runs)
            assert all(map(same_bits, native, ours))


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_backward_follows_the_number_of_threads(two_threads):
    """Bits of a reduction depend on it; backward runs on another thread."""
    torch.manual_seed(0)
    x, bias = torch.randn(300, 5000), torch.randn(5000)
    gradients = {}
    for threads in (2, 1, 2):
        torch.set_num_threads(threads)
        for device in ("cpu", "chameleon"):
            leaves = [t.to(device).requires_grad_() for t in (x, bias)]
            y = nn.functional.layer_norm(leaves[0], (5000,), leaves[1])
            gradients[threads, device] = torch.autograd.grad(
                y.square().sum(), leaves
            )
        assert all(
            map(
                same_bits,
                gradients[threads, "cpu"],
                gradients[threads, "chameleon"],
            )
        )
