"""Nested tensors: the database of jagged ones, and the strided layout."""

import io
import itertools

import pytest
import torch
from torch.testing._internal.opinfo.definitions.nested import njt_op_db
from torch.utils._pytree import tree_map

from conformance.databases.op_checks import tensors
from conformance.harness.samples import seeded
from conformance.harness.suite import Suite

ENTRIES = {
    op.formatted_name: op
    for op in njt_op_db
    if op.supports_njt and torch.float32 in op.dtypes
}
PAGERS = ("never", "all")
SAMPLES = 3  # of each, by default


def plain(leaf):
    """What a nested tensor is made of."""
    if isinstance(leaf, torch.Tensor) and leaf.is_nested:
        return leaf.values(), leaf.offsets().clone()
    return leaf


def call(op, sample, grad):
    def place(leaf, device):
        if isinstance(leaf, torch.Tensor):
            moved = leaf.detach().to(device)
            return moved.requires_grad_(leaf.requires_grad)
        return leaf

    def action(device):
        given, args, kwargs = operands = tree_map(
            lambda leaf: place(leaf, device),
            (sample.input, sample.args, sample.kwargs),
        )
        results = op.op(given, *args, **kwargs)
        roots = [r for r in tensors(results) if r.requires_grad]
        sources = [o for o in tensors(operands) if o.requires_grad]
        gradients = ()
        if grad and roots and sources:
            gradients = torch.autograd.grad(
                sum((r.values() if r.is_nested else r).sum() for r in roots),
                sources,
                allow_unused=True,
            )
        return tree_map(plain, (results, gradients))

    return action


def run(name, limit):
    op, suite = ENTRIES[name], Suite("nested")
    dtype = torch.float32
    for check, grad in (("forward", False), ("backward", True)):
        if grad and dtype not in op.supported_backward_dtypes("cpu"):
            continue
        samples = seeded(op.sample_inputs_func(op, "cpu", dtype, grad))
        actions = (call(op, sample, grad) for sample in samples)
        suite.case(
            name,
            check,
            dtype,
            # With more samples native crashes in some backward passes.
            itertools.islice(actions, SAMPLES if grad else limit),
            PAGERS,
            complete=limit is None,
        )
    suite.verify()


@pytest.mark.sample
@pytest.mark.parametrize("name", ENTRIES)
def test_sample_of_op(name):
    run(name, SAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
def test_op(name):
    run(name, None)


# ---- torch.strided: a storage like any other, sizes on the CPU -------------
PARTS = [
    torch.arange(8.0 * rows).reshape(rows, 8).sin() * (i + 1)
    for i, rows in enumerate((3, 5, 2))
]
WEIGHT = torch.arange(64.0).reshape(8, 8).cos()


def nested(device):
    return torch.nested.nested_tensor(PARTS).to(device)


def heads(device):
    return nested(device).reshape(3, -1, 2, 4).transpose(1, 2).contiguous()


def trained(device):
    leaves = [p.detach().to(device, copy=True).requires_grad_() for p in PARTS]
    weight = WEIGHT.detach().to(device, copy=True).requires_grad_()
    x = torch.nested.as_nested_tensor(leaves)
    y = torch.nn.functional.linear(torch.softmax(x, -1), weight)
    y.to_padded_tensor(0.0).square().sum().backward()
    return [t.grad for t in (*leaves, weight)]


def encoded(device):
    """In eval mode the encoder leaves the padding out."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2).eval().to(device)
    x = torch.randn(3, 5, 16).to(device)
    padding = torch.arange(5).expand(3, 5) >= torch.tensor([[3], [5], [1]])
    with torch.no_grad():
        return encoder(x, src_key_padding_mask=padding.to(device))


def loaded(device):
    file = io.BytesIO()
    torch.save(nested(device), file)
    file.seek(0)
    return torch.load(file)


STRIDED = {
    "moved": nested,
    "moved_back": lambda d: nested(d).cpu(),
    "made_there": lambda d: torch.nested.nested_tensor(PARTS, device=d),
    "as_nested": lambda d: torch.nested.as_nested_tensor(
        [p.to(d) for p in PARTS]
    ),
    "from_padded": lambda d: torch._nested_from_padded(
        torch.arange(24.0).reshape(2, 3, 4).to(d),
        torch.tensor([[2, 4], [3, 4]]),
    ),
    "padded": lambda d: nested(d).to_padded_tensor(0.0),
    "sizes": lambda d: (nested(d).size(0), nested(d)._nested_tensor_size()),
    "linear": lambda d: torch.nn.functional.linear(nested(d), WEIGHT.to(d)),
    "relu": lambda d: torch.relu(nested(d)),
    "relu_": lambda d: nested(d).relu_(),
    "add": lambda d: nested(d) + nested(d),
    "add_": lambda d: nested(d).add_(nested(d)),
    "scaled": lambda d: nested(d) * 2,
    "softmax": lambda d: torch.softmax(nested(d), -1),
    "gelu": lambda d: torch.nn.functional.gelu(nested(d)),
    "dropout": lambda d: torch.dropout(nested(d), 0.5, True),
    "sum": lambda d: nested(d).sum(-1, keepdim=True),
    "bmm": lambda d: torch.bmm(nested(d), nested(d).transpose(1, 2)),
    "attention": lambda d: torch.nn.functional.scaled_dot_product_attention(
        heads(d), heads(d), heads(d)
    ),
    "layer_norm": lambda d: torch.nn.functional.layer_norm(
        nested(d), (8,), WEIGHT[0].to(d), WEIGHT[1].to(d)
    ),
    "embedding": lambda d: torch.nn.functional.embedding(
        torch.nested.nested_tensor(
            [torch.tensor([1, 2]), torch.tensor([3])]
        ).to(d),
        WEIGHT.to(d),
    ),
    "clone": lambda d: nested(d).clone(),
    "detach": lambda d: nested(d).detach(),
    "unbind": lambda d: nested(d).unbind(),
    "select": lambda d: nested(d)[1],
    "chunk": lambda d: nested(d).chunk(2, -1),
    "cat": lambda d: torch.cat([nested(d), nested(d)]),
    "half": lambda d: nested(d).half(),
    "copy_": lambda d: torch.zeros_like(nested(d)).copy_(nested(d)),
    "fill_": lambda d: nested(d).fill_(3),
    "refused": lambda d: torch.fft.fft(nested(d)),
    "loaded": loaded,
    "trained": trained,
    "encoded": encoded,
}


def parts_of(leaf):
    """A nested tensor's parts: what can be compared."""
    if not isinstance(leaf, torch.Tensor) or not leaf.is_nested:
        return leaf
    return (
        leaf._nested_tensor_size(),
        leaf._nested_tensor_strides(),
        leaf._nested_tensor_storage_offsets(),
        leaf.requires_grad,
        [part.clone() for part in leaf.detach().unbind()],
    )


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", STRIDED)
def test_strided(name):
    suite = Suite("nested_strided")
    action = STRIDED[name]
    suite.case(
        name, "run", "float32", [lambda d: tree_map(parts_of, action(d))]
    )
    suite.verify()


def test_strided_and_another_device():
    with pytest.raises(RuntimeError, match="same device.*chameleon:0 and cpu"):
        nested("chameleon") + nested("cpu")


def test_strided_counts_as_memory():
    before = torch.chameleon.memory_allocated()
    tensor = nested("chameleon")
    assert torch.chameleon.memory_allocated() - before >= 10 * 8 * 4
    del tensor
    assert torch.chameleon.memory_allocated() == before
