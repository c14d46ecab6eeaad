"""Recurrent layers and cells: native bits, native autograd graphs."""

import copy
import functools
import itertools

import pytest
import torch
from support import MIB, evicting, moved, same_bits
from torch import nn
from torch.nn.utils import rnn
from torch_chameleon import _C

INPUT, HIDDEN, PROJECTED = 5, 7, 3
BATCH, STEPS = 3, 4

LAYERS = {
    "lstm": nn.LSTM,
    "lstm_projected": functools.partial(nn.LSTM, proj_size=PROJECTED),
    "gru": nn.GRU,
    "rnn_tanh": nn.RNN,
    "rnn_relu": functools.partial(nn.RNN, nonlinearity="relu"),
}
CELLS = {
    "lstm_cell": nn.LSTMCell,
    "gru_cell": nn.GRUCell,
    "rnn_tanh_cell": nn.RNNCell,
    "rnn_relu_cell": functools.partial(nn.RNNCell, nonlinearity="relu"),
}


def flat(results):
    """The tensors in nested tuples, in order."""
    if isinstance(results, torch.Tensor):
        return [results]
    return [t for part in results for t in flat(part)]


def graph(tensors):
    """The autograd graph: node names and edges, depth first."""
    seen, found = {}, []
    stack = [t.grad_fn for t in reversed(tensors)]
    while stack:
        node = stack.pop()
        found.append(seen.get(node, node and node.name()))
        if node is not None and node not in seen:
            seen[node] = len(seen)
            stack += [edge[0] for edge in reversed(node.next_functions)]
    return found


def on(device, value):
    """A copy of a module, or of leaf tensors in nested tuples, on a device."""
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).to(device)
    if isinstance(value, tuple):
        return tuple(on(device, part) for part in value)
    return value.detach().to(device).requires_grad_(value.requires_grad)


def padded(module, x, *state):
    return module(x, *state)


def packed(module, x, *state):
    """Of sequences in no order, so that rows are permuted and back, too."""
    first = module.batch_first
    lengths = torch.tensor([2, STEPS, 1])
    sequence = rnn.pack_padded_sequence(
        x, lengths, batch_first=first, enforce_sorted=False
    )
    output, state = module(sequence, *state)
    assert output.data.device == x.device
    assert output.batch_sizes.device.type == "cpu"
    return rnn.pad_packed_sequence(output, batch_first=first)[0], state


def unbatched(module, x, *state):
    x = x.select(0 if module.batch_first else 1, 0)
    return module(x, *(tuple(s[:, 0] for s in part) for part in state))


CALLS = {"padded": padded, "packed": packed, "unbatched": unbatched}


def run(module, call, *arguments):
    """Results, their graph, and gradients of all leaves, seeded."""
    torch.manual_seed(3)
    results = flat(call(module, *arguments))
    if not results[0].requires_grad:
        return results, []
    nodes = graph(results)
    leaves = [*flat(arguments), *module.parameters()]
    weights = [torch.arange(t.numel()).view_as(t).sin() for t in results]
    grads = torch.autograd.grad(
        results,
        [t for t in leaves if t.requires_grad],
        [w.to(t) for w, t in zip(weights, results, strict=True)],
    )
    return [*results, *grads], nodes


def assert_native(module, call, *arguments):
    expected, nodes = run(module, call, *arguments)
    actual, our_nodes = run(
        on("chameleon", module), call, *on("chameleon", arguments)
    )
    assert our_nodes == nodes
    for ours, native in zip(actual, expected, strict=True):
        assert ours.is_chameleon
        assert ours.stride() == native.stride()
        assert same_bits(ours, native)


def inputs(module, dtype=torch.float32):
    sizes = (BATCH, STEPS) if module.batch_first else (STEPS, BATCH)
    return torch.randn(*sizes, INPUT, dtype=dtype, requires_grad=True)


def initial_state(module, dtype=torch.float32):
    rows = module.num_layers * (2 if module.bidirectional else 1)

    def one(size):
        state = torch.randn(rows, BATCH, size, dtype=dtype)
        return state.requires_grad_()

    if isinstance(module, nn.LSTM):
        return one(module.proj_size or HIDDEN), one(HIDDEN)
    return one(HIDDEN)


@pytest.mark.parametrize("mode", ["train", "eval", "no_grad"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("form", CALLS)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", LAYERS)
def test_layers(kind, layers, form, dtype, mode):
    torch.manual_seed(1)
    for bidirectional, batch_first, bias in itertools.product(
        [False, True], repeat=3
    ):
        module = LAYERS[kind](
            INPUT,
            HIDDEN,
            num_layers=layers,
            bias=bias,
            batch_first=batch_first,
            dropout=0.3 if layers > 1 else 0,
            bidirectional=bidirectional,
            dtype=dtype,
        ).train(mode == "train")
        with torch.set_grad_enabled(mode != "no_grad"):
            assert_native(module, CALLS[form], inputs(module, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("form", ["padded", "packed"])
@pytest.mark.parametrize("kind", LAYERS)
def test_given_state(kind, form, dtype):
    for bidirectional in (False, True):
        torch.manual_seed(1)
        module = LAYERS[kind](
            INPUT, HIDDEN, 2, bidirectional=bidirectional, dtype=dtype
        )
        assert_native(
            module,
            CALLS[form],
            inputs(module, dtype),
            initial_state(module, dtype),
        )


@pytest.mark.parametrize("p", [0.0, 1.0])
@pytest.mark.parametrize("kind", LAYERS)
def test_dropout_of_nothing_and_all(kind, p):
    module = LAYERS[kind](INPUT, HIDDEN, 3, dropout=p)
    assert_native(module, padded, inputs(module))


@pytest.mark.parametrize("form", CALLS)
@pytest.mark.parametrize("kind", LAYERS)
def test_bfloat16(kind, form):
    for bidirectional in (False, True):
        torch.manual_seed(1)
        module = LAYERS[kind](
            INPUT, HIDDEN, 2, bidirectional=bidirectional, dtype=torch.bfloat16
        )
        assert_native(module, CALLS[form], inputs(module, torch.bfloat16))


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("kind", LAYERS)
def test_float16(kind, grad):
    module = LAYERS[kind](INPUT, HIDDEN, 2, dtype=torch.float16)
    with torch.set_grad_enabled(grad):
        assert_native(module, padded, inputs(module, torch.float16))


@pytest.mark.parametrize("form", CALLS)
def test_lstm_without_onednn(form):
    with torch.backends.mkldnn.flags(enabled=False):
        for bidirectional in (False, True):
            torch.manual_seed(1)
            module = nn.LSTM(INPUT, HIDDEN, 2, bidirectional=bidirectional)
            assert_native(module, CALLS[form], inputs(module))


def test_lstm_takes_onednn_exactly_where_the_cpu_does():
    x = torch.randn(STEPS, BATCH, INPUT)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        native = nn.LSTM(INPUT, HIDDEN, dtype=dtype)
        module = on("chameleon", native)
        names = [
            {node for node in graph([m(x.to(p))[0]]) if isinstance(node, str)}
            for m in (native, module)
            for p in [next(m.parameters())]
        ]
        assert names[0] == names[1]
        onednn = any("Mkldnn" in name for name in names[1])
        assert onednn or dtype != torch.float32
        assert not onednn or dtype != torch.float64


def test_strided_input():
    """Of an input whose strides are no layer's own."""
    for kind in LAYERS:
        module = LAYERS[kind](INPUT, HIDDEN)

        def strided(module, x):
            return module(x.transpose(0, 2).flip(1).transpose(0, 2))

        assert_native(module, strided, inputs(module))


def test_frozen_weights_and_inference_mode():
    for kind in LAYERS:
        module = LAYERS[kind](INPUT, HIDDEN, 2).requires_grad_(False)
        assert_native(module, padded, inputs(module))
        with torch.inference_mode():
            assert_native(module, padded, inputs(module))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", CELLS)
def test_cells(kind, dtype, bias):
    torch.manual_seed(1)

    def three_steps(module, x, *state):
        state = state[0] if state else None
        states = []
        for _ in range(3):
            state = module(x, state)
            states.append(state)
        return states

    def fresh(*sizes):
        return torch.randn(*sizes, dtype=dtype, requires_grad=True)

    module = CELLS[kind](INPUT, HIDDEN, bias=bias, dtype=dtype)
    state = fresh(BATCH, HIDDEN)
    if kind == "lstm_cell":
        state = (state, fresh(BATCH, HIDDEN))
    x = fresh(BATCH, INPUT)
    assert_native(module, three_steps, x)
    assert_native(module, three_steps, x, state)
    with torch.no_grad():
        assert_native(module, three_steps, x, state)


def test_cell_whose_input_is_its_state():
    """Three gradients meet in one leaf: the order of nodes decides the bits."""
    for kind in CELLS:
        module = CELLS[kind](HIDDEN, HIDDEN)

        def call(module, x, pair=kind == "lstm_cell"):
            return module(x, (x, x) if pair else x)

        x = torch.randn(BATCH, HIDDEN, requires_grad=True)
        assert_native(module, call, x)


def assert_native_twice(module, call, x):
    """Gradients of gradients.

    Not bit for bit: an accelerator's backward runs on a thread of its own,
    which numbers the nodes of the second graph from where it stands. Where
    three gradients meet, that decides the order of the sum.
    """

    def second(module, x):
        leaves = [x, *module.parameters()]
        first = torch.autograd.grad(
            sum((t * t).sum() for t in flat(call(module, x))),
            leaves,
            create_graph=True,
        )
        nodes = graph(first)
        loss = sum((t * t).sum() for t in first)
        return nodes, torch.autograd.grad(loss, leaves)

    nodes, expected = second(module, x)
    our_nodes, actual = second(on("chameleon", module), on("chameleon", x))
    assert our_nodes == nodes
    for ours, native in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours.cpu(), native)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("form", ["padded", "packed"])
@pytest.mark.parametrize("kind", LAYERS)
def test_double_backward(kind, form, dtype):
    torch.manual_seed(1)
    module = LAYERS[kind](INPUT, HIDDEN, bidirectional=True, dtype=dtype)
    assert_native_twice(module, CALLS[form], inputs(module, dtype))


def test_double_backward_of_cells():
    torch.manual_seed(1)
    for kind in CELLS:
        module = CELLS[kind](INPUT, HIDDEN)
        x = torch.randn(BATCH, INPUT, requires_grad=True)
        assert_native_twice(module, padded, x)


@pytest.mark.parametrize("form", ["padded", "packed"])
@pytest.mark.parametrize("kind", LAYERS)
def test_autocast(kind, form):
    """As in the CPU's: its oneDNN layer is cast whole, plain cells are not."""
    torch.manual_seed(1)
    module = LAYERS[kind](INPUT, HIDDEN, 2, bidirectional=True)
    x = inputs(module)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = flat(CALLS[form](module, x))
    with torch.autocast("chameleon", dtype=torch.bfloat16):
        actual = flat(CALLS[form](on("chameleon", module), on("chameleon", x)))
    assert all(map(same_bits, actual, expected))


@pytest.mark.parametrize("kind", LAYERS)
def test_training(kind):
    """A few steps end at the same weights."""

    def train(module, x):
        torch.manual_seed(5)
        for _ in range(3):
            module.zero_grad()
            module(x)[0].square().mean().backward()
            with torch.no_grad():
                for weight in module.parameters():
                    weight.sub_(weight.grad, alpha=0.1)
        return list(module.parameters())

    torch.manual_seed(1)
    module = LAYERS[kind](INPUT, HIDDEN, 2, dropout=0.2)
    x = inputs(module).detach()
    ours = train(on("chameleon", module), on("chameleon", x))
    assert all(map(same_bits, ours, train(module, x)))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_under_pressure(kind, tight):
    """More weights and gradients than the device holds."""
    torch.manual_seed(1)
    module = LAYERS[kind](128, 128, 8)
    x = torch.randn(2, 1, 128)
    expected, _ = run(module, padded, x)
    tight(4 * MIB)
    ours = on("chameleon", module)

    def compare():
        actual, _ = run(ours, padded, on("chameleon", x))
        assert all(map(same_bits, actual, expected))

    assert moved(compare)["faults"] > 0


# --- packed sequences ---


@pytest.mark.parametrize("batch_first", [False, True])
def test_pack_and_pad(batch_first):
    sizes = (BATCH, STEPS, 2) if batch_first else (STEPS, BATCH, 2)
    lengths = torch.tensor([4, 2, 1])

    def round_trip(x):
        sequence = rnn.pack_padded_sequence(x, lengths, batch_first=batch_first)
        assert sequence.data.device == x.device
        assert sequence.batch_sizes.tolist() == [3, 2, 1, 1]
        back, same_lengths = rnn.pad_packed_sequence(
            sequence, batch_first, padding_value=-1, total_length=6
        )
        assert same_lengths.tolist() == lengths.tolist()
        results = [sequence.data, back]
        weights = [torch.arange(t.numel()).view_as(t).sin() for t in results]
        grads = torch.autograd.grad(
            results, x, [w.to(x) for w in weights], create_graph=True
        )
        return [*results, *grads], graph([*results, *grads])

    x = torch.randn(*sizes, requires_grad=True)
    expected, nodes = round_trip(x)
    actual, our_nodes = round_trip(on("chameleon", x))
    assert our_nodes == nodes
    assert all(map(same_bits, actual, expected))


def test_sequences_of_other_lengths():
    parts = [torch.randn(n, 2, requires_grad=True) for n in (3, 1, 4)]

    def call(parts):
        sequence = rnn.pack_sequence(parts, enforce_sorted=False)
        both = [
            rnn.pad_sequence(parts, batch_first=True, padding_value=2.0),
            rnn.pad_sequence(parts, padding_side="left"),
            sequence.data,
            *rnn.unpack_sequence(sequence),
        ]
        loss = sum((t * t).sum() for t in both)
        return [*both, *torch.autograd.grad(loss, parts)]

    ours = call(on("chameleon", tuple(parts)))
    assert all(map(same_bits, ours, call(parts)))
    assert all(t.is_chameleon for t in ours)


def test_packed_sequence_moves():
    native = rnn.pack_sequence([torch.randn(3, 2), torch.randn(1, 2)])
    ours = native.to("chameleon")
    assert ours.data.is_chameleon
    assert ours.batch_sizes.device.type == "cpu"
    assert same_bits(ours.cpu().data, native.data)


# --- errors ---


def test_errors():
    module = nn.GRU(INPUT, HIDDEN).to("chameleon")
    lstm = nn.LSTM(INPUT, HIDDEN).to("chameleon")
    x = torch.randn(STEPS, BATCH, INPUT)
    ours = x.to("chameleon")
    for layer in (module, lstm):
        with pytest.raises(RuntimeError, match="not at the same device"):
            layer(x)
        with pytest.raises(RuntimeError, match="larger than 0"):
            layer(ours[:0])
    h = torch.zeros(1, BATCH, HIDDEN, device="chameleon")
    weights = list(module.parameters())
    options = (True, 1, 0.0, True, False)
    with pytest.raises(RuntimeError, match="number of RNN parameters"):
        torch.gru(ours, h, weights[:3], *options, False)
    with pytest.raises(RuntimeError, match="more hidden states"):
        torch.gru(ours, torch.cat([h, h]), weights, *options, False)
    with pytest.raises(RuntimeError, match="two hidden states"):
        torch.lstm(ours, [h], list(lstm.parameters()), *options, False)
    sizes = torch.tensor([BATCH] * STEPS, device="chameleon")
    with pytest.raises(RuntimeError, match="1D CPU int64"):
        torch.gru(ours.flatten(0, 1), sizes, h, weights, *options)
    with pytest.raises(RuntimeError, match="1D CPU int64"):
        rnn.pack_padded_sequence(ours, sizes[:BATCH])
    with pytest.raises(RuntimeError, match="21, but got 6"):
        torch.gru_cell(ours[0], h[0], weights[0][:6], weights[1])
    with pytest.raises(RuntimeError, match="batch size"):
        torch.gru_cell(ours[0], h[0, :1], weights[0], weights[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_workspace_is_written_by_backward(dtype):
    """It leaves memory dirty: no host copy of before may come back."""
    torch.manual_seed(1)
    module = nn.LSTM(INPUT, HIDDEN).to(dtype).to("chameleon")
    x = torch.randn(4, 2, INPUT, dtype=dtype).to("chameleon")
    with evicting("all"):
        loss = module(x)[0].sum()
        for _ in range(2):
            loss.backward(retain_graph=True)
            _C.check_invariants(0, 3)
