"""Composites that branch on the device take the branch of what is modelled.

A simulated device takes CUDA's; shapes and dtypes are those of a run with data.
That "cuda" takes it too is `test_op_sequences`.
"""

import json
import subprocess
import sys

import pytest

_CODE = """
import json, os, sys, warnings
import torch, torch_chameleon
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

torch_chameleon.config.physical_device = sys.argv[1]
warnings.simplefilter("ignore")

class Log(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops.append(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))

def made(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype).to("chameleon").requires_grad_()

def ran(run, *leaves):
    with Log() as log:
        results = [t for t in tree_leaves(run())
                   if torch.is_tensor(t) and t.requires_grad]
        torch.autograd.backward(results, [torch.ones_like(t) for t in results])
    of = lambda t: [list(t.shape), str(t.dtype)]
    return log.ops, [of(t) for t in results], [of(t.grad) for t in leaves]

x, bf16 = made(4, 6, 8), made(4, 6, 8, dtype=torch.bfloat16)
norm = torch.nn.RMSNorm(8).to("chameleon")
image, grid = made(2, 3, 6, 6), made(2, 5, 4, 2)
cells = {
    name: getattr(torch.nn, name)(8, 5).to("chameleon")
    for name in ("LSTMCell", "GRUCell", "RNNCell")
}
layers = {
    name: getattr(torch.nn, name)(8, 5, bidirectional=True).to("chameleon")
    for name in ("LSTM", "GRU", "RNN")
}
def without_cudnn(layer):
    with torch.backends.cudnn.flags(enabled=False):
        return layer(x)

def run_packed(layer):
    return layer(torch.nn.utils.rnn.pack_padded_sequence(x, [4, 4, 3, 2, 1, 1]))

deep = torch.nn.LSTM(8, 5, 3, dropout=0.5, batch_first=True).to("chameleon")
slim = torch.nn.LSTM(8, 5, proj_size=3, bias=False).to("chameleon")
batch = torch.nn.BatchNorm2d(3).to("chameleon")
cases = {
    "batch norm": (lambda: batch(image), image, *batch.parameters()),
    "batch norm by statistics": (
        lambda: batch.eval()(image), image, *batch.parameters()),
    "batch norm without weights": (
        lambda: F.batch_norm(image, None, None, training=True), image),
    "LSTM of layers": (lambda: deep(x), x, *deep.parameters()),
    "LSTM projected": (lambda: slim(x), x, *slim.parameters()),
    "rms_norm": (lambda: norm(x), x, norm.weight),
    "rms_norm without a weight": (lambda: F.rms_norm(x, (6, 8)), x),
    "rms_norm of bf16": (
        lambda: F.rms_norm(bf16, (8,), torch.ones_like(bf16[0, 0])), bf16),
    "rms_norm of two types": (lambda: norm(bf16), bf16, norm.weight),
    "grid_sample": (
        lambda: F.grid_sample(image, grid, align_corners=True), image, grid),
    "grid_sample between corners": (
        lambda: F.grid_sample(image, grid, align_corners=False), image, grid),
    **{name: (lambda c=cell: c(x[0]), *cell.parameters())
       for name, cell in cells.items()},
    **{name: (lambda c=layer: c(x), *layer.parameters())
       for name, layer in layers.items()},
    **{f"{name} packed": (lambda c=layer: run_packed(c), *layer.parameters())
       for name, layer in layers.items()},
    **{f"{name} without cuDNN": (
        lambda c=layer: without_cudnn(c), *layer.parameters())
       for name, layer in layers.items()},
}
outcomes = {}
for name, (run, *leaves) in cases.items():
    for leaf in leaves:
        leaf.grad = None
    outcomes[name] = ran(run, *leaves)
print(json.dumps(outcomes), flush=True)
# Threads of autograd may still be letting go of the modes they ran under, which
# Python's end does not wait for.
os._exit(0)
"""

# What decides: the op that CUDA has, and what the CPU takes in its place.
DECIDING = {
    "rms_norm": ("_fused_rms_norm", "rsqrt"),
    "rms_norm without a weight": ("_fused_rms_norm", "rsqrt"),
    "rms_norm of bf16": ("_fused_rms_norm", "rsqrt"),
    "rms_norm of two types": ("rsqrt", "rsqrt"),
    "grid_sample": ("cudnn_grid_sampler", "grid_sampler_2d"),
    "grid_sample between corners": ("grid_sampler_2d", "grid_sampler_2d"),
    "LSTMCell": ("_thnn_fused_lstm_cell", "sigmoid_"),
    "GRUCell": ("_thnn_fused_gru_cell", "sigmoid_"),
    "RNNCell": ("tanh", "tanh"),
    "batch norm": ("cudnn_batch_norm", "native_batch_norm"),
    "batch norm by statistics": ("cudnn_batch_norm", "native_batch_norm"),
    "batch norm without weights": ("native_batch_norm", "native_batch_norm"),
    "LSTM of layers": ("_cudnn_rnn", "mkldnn_rnn_layer"),
    "LSTM projected": ("_cudnn_rnn", "sigmoid_"),
    "LSTM": ("_cudnn_rnn", "mkldnn_rnn_layer"),
    "GRU": ("_cudnn_rnn", "sigmoid_"),
    "RNN": ("_cudnn_rnn", "tanh"),
    "LSTM packed": ("_cudnn_rnn", "sigmoid_"),
    "GRU packed": ("_cudnn_rnn", "sigmoid_"),
    "RNN packed": ("_cudnn_rnn", "tanh"),
    "LSTM without cuDNN": ("_thnn_fused_lstm_cell", "mkldnn_rnn_layer"),
    "GRU without cuDNN": ("_thnn_fused_gru_cell", "sigmoid_"),
    "RNN without cuDNN": ("tanh", "tanh"),
}


@pytest.fixture(scope="module")
def outcomes():
    """What became of each case: on a simulated device, and with data."""
    found = []
    for device in ("simulated", "cpu"):
        done = subprocess.run(
            [sys.executable, "-c", _CODE, device],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return found


@pytest.mark.parametrize("case", DECIDING)
def test_branch(outcomes, case):
    for outcome, (op, other) in zip(
        outcomes, (DECIDING[case], DECIDING[case][::-1]), strict=True
    ):
        ops, _, _ = outcome[case]
        assert op in ops
        assert op == other or other not in ops


@pytest.mark.parametrize("case", DECIDING)
def test_shapes_are_those_of_a_run_with_data(outcomes, case):
    simulated, real = outcomes
    assert simulated[case][1:] == real[case][1:]


HALF = """
import time, torch, torch_chameleon, warnings
torch_chameleon.config.physical_device = "{}"
warnings.simplefilter("ignore")
x = torch.ones(4, 8, dtype=torch.float16).to("chameleon").requires_grad_()
y = torch.ones(4, 8).requires_grad_()
several = {{"dim": (0, 1)}}
for name, options in (
    *((name, {{}}) for name in ("fft", "ifft", "rfft", "irfft")),
    *((name, {{"n": 16}}) for name in ("rfft", "hfft", "ihfft", "fft")),
    *((name, {{"n": 4}}) for name in ("rfft", "hfft", "ihfft", "fft")),
    *((f"{{name}}n", {{}}) for name in ("fft", "rfft", "ihfft", "hfft")),
    *((f"{{name}}2", several) for name in ("ifft", "rfft", "ihfft", "irfft")),
    *((f"{{name}}n", several | {{"s": (2, 16), "norm": "ortho"}})
      for name in ("ifft", "rfft", "ihfft", "irfft")),
):
    run = getattr(torch.fft, name)
    expected = run(y, **options)
    result = run(x, **options)
    assert result.shape == expected.shape, (name, options)
    complex_result = expected.is_complex()
    dtype = torch.complex32 if complex_result else torch.float16
    assert result.dtype == dtype, (name, options)
    out = torch.empty(result.shape, dtype=dtype, device="chameleon")
    assert run(x.detach(), **options, out=out) is out
    out = result.resolve_conj()
    out = torch.view_as_real(out) if complex_result else out
    (grad,) = torch.autograd.grad(out, x, torch.ones_like(out))
    assert (grad.shape, grad.dtype) == (x.shape, x.dtype)
print("done", flush=True)
# Python ends a thread that asks for the GIL while it exits, and autograd's
# device thread asks for it once more to let go of the last graph.
time.sleep(0.2)
"""


def test_transforms_of_half_precision(fresh):
    assert fresh(HALF.format("simulated")) == "done"


def test_the_cpu_has_no_transforms_of_half_precision(fresh):
    code = "import torch, torch_chameleon\n"
    code += "torch_chameleon.config.physical_device = 'cpu'\n"
    code += "x = torch.ones(8, dtype=torch.float16).to('chameleon')\n"
    code += "try: torch.fft.{}(x)\n"
    code += "except RuntimeError as error: print(error)"
    for name in ("fft", "irfft", "rfftn"):
        assert "Unsupported dtype Half" in fresh(code.format(name))


LAYER = """
import torch, torch_chameleon
torch_chameleon.config.physical_device = "simulated"
size, steps, rows = 2048, 128, 64
layer = torch.nn.LSTM(size, size, dtype=torch.bfloat16).to("chameleon")
x = torch.ones(steps, rows, size, dtype=torch.bfloat16).to("chameleon")
one = torch.ones(steps * rows, 2 * size, dtype=torch.bfloat16).to("chameleon")
other = torch.ones(2 * size, 4 * size, dtype=torch.bfloat16).to("chameleon")

def compute_ns(run):
    torch.chameleon.synchronize()
    torch_chameleon.reset_swap_stats()
    run()
    torch.chameleon.synchronize()
    return torch_chameleon.swap_stats()["compute_ns"]

forward = compute_ns(lambda: layer(x))
output, _ = layer(x)
backward = compute_ns(lambda: output.sum().backward())
product = compute_ns(lambda: torch.mm(one, other))
print(forward / product, backward / product)
"""


def test_a_layer_takes_the_time_of_its_matrices(fresh):
    forward, backward = map(float, fresh(LAYER).split())
    assert forward == pytest.approx(1, rel=0.1)
    assert backward == pytest.approx(2, rel=0.1)
