"""TorchScript records the ops that it records natively, with their results."""

import copy
import io
import warnings

import pytest
import torch
from support import same_bits
from torch import nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten

DTYPES = (torch.float32, torch.complex64, torch.int64, torch.bool)
SAMPLES = 2

# A sparse result; and what has no values.
WITHOUT = {"to_sparse", "empty", "empty_like", "empty_permuted"}
WITHOUT |= {"empty_strided", "new_empty", "new_empty_strided"}


def kinds(block):
    """The names of a graph's nodes, with those inside of nodes."""
    found = []
    for node in block.nodes():
        found.append(node.kind())
        for inner in node.blocks():
            found += ["{", *kinds(inner), "}"]
    return found


def samples_of(op):
    dtype = next((d for d in DTYPES if d in op.dtypes), None)
    if dtype is None:
        return
    taken = 0
    for sample in op.sample_inputs("cpu", dtype):
        leaves = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        if all(x.layout == torch.strided for x in tensors):
            yield sample
            taken += 1
        if taken == SAMPLES:
            return


def traced(op, sample, device):
    """The recorded nodes and what the recording computes; None: an error."""
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    # An index tensor of tensor_split is the CPU's on every device.
    stays = op.name == "tensor_split"
    tensors = [
        leaves[i].detach().to("cpu" if stays and i != places[0] else device)
        for i in places
    ]

    def run(*given):
        filled = list(leaves)
        for place, tensor in zip(places, given, strict=True):
            filled[place] = tensor
        value, args, kwargs = tree_unflatten(filled, spec)
        torch.manual_seed(0)
        results = tree_flatten(op.op(value, *args, **kwargs))[0]
        return tuple(x for x in results if isinstance(x, torch.Tensor))

    copies = [x.clone() for x in tensors]
    try:
        recorded = torch.jit.trace(run, tuple(tensors), check_trace=False)
        return kinds(recorded.graph), recorded(*copies)
    except Exception:  # what cannot be traced; or values that are not tensors
        return None, ()


def check(ops):
    warnings.simplefilter("ignore")
    different = []
    for op in ops:
        if op.name in WITHOUT:
            continue
        for sample in samples_of(op):
            native, wanted = traced(op, sample, "cpu")
            ours, found = traced(op, sample, "chameleon")
            same = native == ours and len(wanted) == len(found)
            pairs = zip(wanted, found, strict=same)
            if not (same and all(same_bits(a, b) for a, b in pairs)):
                different.append((op.name, op.variant_test_name))
        # Torch keeps every recording, and the tensors in it.
        torch.jit._state._python_cu.drop_all_functions()
    assert different == []


@pytest.mark.sample
@pytest.mark.filterwarnings("ignore")
def test_ops_of_networks():
    names = ("conv", "nn.functional.conv", "nn.functional.linear", "matmul")
    names += ("nn.functional.batch_norm", "nn.functional.gelu", "softmax")
    check([op for op in op_db if op.name.startswith(names)])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(4))
def test_every_op(part):
    check(op_db[part::4])


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.ConvTranspose2d(4, 2, 3),
        nn.Flatten(),
        nn.Linear(128, 3),
    ).eval()


def test_convolutions_in_a_saved_program():
    native, x = network(), torch.randn(1, 3, 8, 8)
    recorded = torch.jit.trace(network().to("chameleon"), x.to("chameleon"))
    assert kinds(recorded.inlined_graph) == kinds(
        torch.jit.trace(native, x).inlined_graph
    )
    file = io.BytesIO()
    torch.jit.save(recorded, file)
    file.seek(0)
    loaded = torch.jit.load(file)
    assert same_bits(loaded(x.to("chameleon")), native(x))
    file.seek(0)
    assert same_bits(torch.jit.load(file, map_location="cpu")(x), native(x))


RECURRENT = [
    nn.LSTM(4, 4),
    nn.GRU(4, 4, bidirectional=True),
    nn.RNN(4, 4),
    nn.LSTMCell(4, 4),
    nn.GRUCell(4, 4),
    nn.TransformerEncoderLayer(4, 2, 8).eval(),
]


@pytest.mark.parametrize("native", RECURRENT, ids=lambda x: type(x).__name__)
@pytest.mark.filterwarnings("ignore")
def test_layers(native):
    is_cell = isinstance(native, nn.RNNCellBase)
    x = torch.randn(3, 4) if is_cell else torch.randn(3, 2, 4)
    ours = copy.deepcopy(native).to("chameleon")
    wanted = torch.jit.trace(native, x)
    found = torch.jit.trace(ours, x.to("chameleon"))
    assert sorted(kinds(wanted.inlined_graph)) == sorted(
        kinds(found.inlined_graph)
    )
    pairs = zip(
        tree_flatten(wanted(x))[0],
        tree_flatten(found(x.to("chameleon")))[0],
        strict=True,
    )
    assert all(same_bits(a, b) for a, b in pairs)


def test_graph_for_tensorboard():
    tensorboard = pytest.importorskip(
        "torch.utils.tensorboard._pytorch_graph",
        reason="tensorboard is not installed",
    )

    def nodes(model, x):
        graph, _ = tensorboard.graph(model, (x,))
        return [(node.name, node.op) for node in graph.node]

    x = torch.randn(1, 3, 8, 8)
    assert nodes(network(), x) == nodes(
        network().to("chameleon"), x.to("chameleon")
    )


def test_onnx_of_torchscript():
    pytest.importorskip("onnx", reason="onnx is not installed")

    def exported(model, x):
        file = io.BytesIO()
        torch.onnx.export(model, (x,), file, dynamo=False)
        return file.getvalue()

    x = torch.randn(1, 3, 8, 8)
    assert exported(network(), x) == exported(
        network().to("chameleon"), x.to("chameleon")
    )
