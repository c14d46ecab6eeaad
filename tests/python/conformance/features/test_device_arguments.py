"""Where tensors end up: device=, .to, copies, indices, tensors as numbers."""

import importlib

import pytest
import torch
from support import same_bits
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, RAdam, RMSprop

FACTORIES = {
    "empty": lambda **o: torch.empty(2, 3, **o).zero_(),
    "zeros": lambda **o: torch.zeros(2, 3, **o),
    "ones": lambda **o: torch.ones(2, 3, **o),
    "full": lambda **o: torch.full((2, 3), 7.0, **o),
    "arange": lambda **o: torch.arange(1, 9, 2, **o),
    "linspace": lambda **o: torch.linspace(0, 1, 5, **o),
    "logspace": lambda **o: torch.logspace(0, 1, 5, **o),
    "eye": lambda **o: torch.eye(3, **o),
    "tensor": lambda **o: torch.tensor([[1.0, 2.0]], **o),
    "as_tensor": lambda **o: torch.as_tensor([1.0, 2.0], **o),
    "asarray": lambda **o: torch.asarray([1.0, 2.0], **o),
    "scalar_tensor": lambda **o: torch.scalar_tensor(3, **o),
    "rand": lambda **o: torch.rand(4, **o),
    "randn": lambda **o: torch.randn(4, **o),
    "randint": lambda **o: torch.randint(0, 9, (4,), **o),
    "randperm": lambda **o: torch.randperm(9, **o),
    "tril_indices": lambda **o: torch.tril_indices(3, 3, **o),
    "triu_indices": lambda **o: torch.triu_indices(3, 3, **o),
    "vander": lambda **o: torch.vander(torch.arange(4.0, **o)),
    "complex": lambda **o: torch.complex(
        torch.ones(2, **o), torch.zeros(2, **o)
    ),
    "hann_window": lambda **o: torch.hann_window(5, **o),
    "kaiser_window": lambda **o: torch.kaiser_window(5, **o),
    "fftfreq": lambda **o: torch.fft.fftfreq(5, **o),
    "normal": lambda **o: torch.normal(0.0, 1.0, (4,), **o),
    "zeros_like": lambda **o: torch.zeros_like(torch.ones(2), **o),
    "rand_like": lambda **o: torch.rand_like(torch.ones(2), **o),
    "full_like": lambda **o: torch.full_like(torch.ones(2), 3.0, **o),
    "new_zeros": lambda **o: torch.ones(2).new_zeros(3, **o),
    "new_tensor": lambda **o: torch.ones(2).new_tensor([4.0], **o),
    "new_full": lambda **o: torch.ones(2).new_full((2,), 4.0, **o),
    "frombuffer": lambda **o: torch.frombuffer(
        bytearray(range(8)), dtype=torch.uint8
    ).to(**o),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories(name):
    torch.manual_seed(0)
    native = FACTORIES[name](device="cpu")
    for device in ("chameleon", "chameleon:0", torch.device("chameleon", 0)):
        torch.manual_seed(0)
        ours = FACTORIES[name](device=device)
        assert ours.device == torch.device("chameleon:0")
        assert same_bits(native, ours)
        assert native.stride() == ours.stride()


@pytest.mark.parametrize("name", FACTORIES)
def test_factories_under_a_default_device(name):
    torch.manual_seed(0)
    native = FACTORIES[name]()
    with torch.device("chameleon"):
        torch.manual_seed(0)
        ours = FACTORIES[name]()
    # .to() names no device, and torch does not count normal() as a factory.
    assert ours.is_chameleon or name in ("frombuffer", "normal")
    assert same_bits(native, ours)


def test_like_and_new_stay_where_they_are():
    here = torch.ones(2, 3, device="chameleon")
    assert torch.zeros_like(here).is_chameleon
    assert here.new_zeros(2).is_chameleon
    assert here.new_tensor([1.0]).is_chameleon
    assert torch.zeros_like(here, device="cpu").is_cpu
    assert here.new_zeros(2, device="cpu").is_cpu
    assert torch.tensor(here[0, 0], device="cpu").is_cpu


MOVES = {
    "to name": lambda x: x.to("chameleon"),
    "to device": lambda x: x.to(torch.device("chameleon", 0)),
    "to both": lambda x: x.to("chameleon", torch.float64),
    "to other": lambda x: x.to(torch.ones(1, device="chameleon")),
    "to format": lambda x: x.to("chameleon", memory_format=torch.channels_last),
    "to copy": lambda x: x.to("chameleon", copy=True),
    "non_blocking": lambda x: x.to("chameleon", non_blocking=True),
    "method": lambda x: x.chameleon(),
    "copy_": lambda x: torch.empty_like(x, device="chameleon").copy_(x),
    "copy_ other dtype": lambda x: torch.empty(
        x.shape, dtype=torch.float64, device="chameleon"
    ).copy_(x),
    "copy_ broadcast": lambda x: torch.empty(
        3, *x.shape, device="chameleon"
    ).copy_(x),
    "copy_ strided": lambda x: torch.zeros(*x.shape, 2, device="chameleon")[
        ..., 1
    ].copy_(x),
    "type_as": lambda x: x.type_as(torch.ones(1, device="chameleon")),
}
SOURCES = {
    "dense": lambda: torch.rand(2, 3, 4, 5),
    "transposed": lambda: torch.rand(5, 4, 3, 2).mT.transpose(0, 3),
    "expanded": lambda: torch.rand(2, 1, 4, 1).expand(2, 3, 4, 5),
    "cut": lambda: torch.rand(4, 6, 8, 10)[::2, ::2, ::2, ::2],
    "channels last": lambda: torch.rand(2, 3, 4, 5).to(
        memory_format=torch.channels_last
    ),
    "empty": lambda: torch.rand(2, 0, 4, 5),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("move", MOVES)
def test_moves(move, source):
    native = SOURCES[source]()
    ours = MOVES[move](native)
    assert ours.is_chameleon
    expected = native.expand_as(ours).to(ours.dtype)
    assert same_bits(expected, ours)
    if move.startswith("to"):
        options = {"copy": True}
        if move == "to format":
            options["memory_format"] = torch.channels_last
        assert ours.stride() == native.to(ours.dtype, **options).stride()
    back = ours.cpu()
    assert back.is_cpu
    assert back.stride() == ours.clone().stride()
    into = torch.zeros_like(native, dtype=torch.float64).contiguous()
    if ours.shape == into.shape:
        assert same_bits(into.copy_(ours), expected.double())


def test_to_where_it_is_gives_itself():
    x = torch.ones(2, device="chameleon")
    assert x.to("chameleon") is x
    assert x.to("chameleon:0") is x
    assert x.to("chameleon", copy=True) is not x


# Tensors on the device where native takes a number: read, as on CUDA.
NUMBERS = {
    "alpha": lambda x, n: torch.add(x, x, alpha=n),
    "full": lambda x, n: x.new_full((2,), n.item()),
    "pow": lambda x, n: x**n,
    "clamp": lambda x, n: x.clamp(min=n),
    "index": lambda x, n: x[n],
    "slice": lambda x, n: x[:n],
    "narrow": lambda x, n: x.narrow(0, n, 1),
    "range": lambda x, n: torch.arange(n, device=x.device),
    "size": lambda x, n: torch.zeros(n, device=x.device),
    "expand": lambda x, n: x[:1].expand(n, -1),
    "reshape": lambda x, n: x.reshape(-1, n),
    "select": lambda x, n: x.select(0, n),
    "add": lambda x, n: n + x,
    "list": lambda x, n: [x[0, 0].item()][n - n],
    "fill": lambda x, n: x.clone().fill_(n),
    "setitem": lambda x, n: x.clone().index_fill_(0, n.view(1) - 1, n),
    "masked_fill": lambda x, n: x.masked_fill(x > 0.5, n),
    "bool": lambda x, n: x if n else -x,
    "format": lambda x, n: f"{n} {n:d} {float(n)} {int(n)} {n.tolist()}",
    "comparison": lambda x, n: n == 2 and n < 3 and 2 in x.long() + 2,
    "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
    "roll": lambda x, n: torch.roll(x, int(n), 0),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_tensors_as_numbers(name):
    torch.manual_seed(0)
    x, number = torch.rand(4, 4), torch.tensor(2)
    native = NUMBERS[name](x, number)
    ours = NUMBERS[name](x.chameleon(), number.chameleon())
    if torch.is_tensor(native):
        assert ours.is_chameleon
        assert same_bits(native, ours)
    else:
        assert ours == native


INDICES = {
    "ints": torch.tensor([2, 0, 1]),
    "mask": torch.tensor([True, False, True, False]),
    "number": torch.tensor(1),
    "grid": torch.tensor([[0, 1], [2, 3]]),
    "negative": torch.tensor([-1, -2]),
    "none": torch.tensor([], dtype=torch.long),
}


@pytest.mark.parametrize("index", INDICES)
def test_indices_from_either_side(index):
    native = torch.arange(16.0).view(4, 4)
    index = INDICES[index]
    expected = native[index]
    assigned = native.clone()
    assigned[index] = 5.0
    put = native.clone()
    put[index] = torch.full_like(expected, 3.0)
    for place in ("cpu", "chameleon"):
        ours = native.chameleon()
        assert same_bits(ours[index.to(place)], expected)
        ours[index.to(place)] = 5.0
        assert same_bits(ours, assigned)
        ours = native.chameleon()
        ours[index.to(place)] = torch.full_like(expected, 3.0).chameleon()
        assert same_bits(ours, put)
        number = native.chameleon()
        number[index.to(place)] = torch.tensor(5.0)  # 0-dim, on the CPU
        assert same_bits(number, assigned)


CAPTURABLE = {
    "Adam": lambda p: Adam(p, capturable=True),
    "AdamW": lambda p: AdamW(p, capturable=True, amsgrad=True),
    "AdamW lr": lambda p: AdamW(p, lr=torch.tensor(0.01), capturable=True),
    "Adam foreach": lambda p: Adam(p, capturable=True, foreach=True),
    "Adam fused": lambda p: Adam(p, fused=True, lr=torch.tensor(0.01)),
    "NAdam": lambda p: NAdam(p, capturable=True),
    "RAdam": lambda p: RAdam(p, capturable=True, foreach=True),
    "RMSprop": lambda p: RMSprop(p, capturable=True, momentum=0.5),
    "Adagrad": lambda p: Adagrad(p, foreach=True),
    "SGD": lambda p: SGD(p, lr=torch.tensor(0.1), momentum=0.9, fused=True),
}


@pytest.mark.parametrize("name", CAPTURABLE)
def test_capturable_steps(name, monkeypatch):
    """State that counts steps lives on the device; native is told it may."""
    for name_of_module in ("adam", "adamw", "nadam", "radam", "rmsprop"):
        module = importlib.import_module(f"torch.optim.{name_of_module}")
        if hasattr(module, "_get_capturable_supported_devices"):
            monkeypatch.setattr(
                module,
                "_get_capturable_supported_devices",
                lambda *args, **kwargs: ["cpu", "chameleon"],
            )
    results = []
    for device in ("cpu", "chameleon"):
        torch.manual_seed(0)
        parameters = [
            torch.rand(size).to(device).requires_grad_() for size in (3, 5)
        ]
        optimizer = CAPTURABLE[name](parameters)
        if device == "cpu":  # the default depends on the device's name
            for group in optimizer.param_groups:
                if group["foreach"] is None and not group.get("fused"):
                    group["foreach"] = True
        for _ in range(3):
            for parameter in parameters:
                parameter.grad = parameter.detach() * 2
            optimizer.step()
        steps = [
            state["step"].device.type
            for state in optimizer.state.values()
            if torch.is_tensor(state.get("step"))
        ]
        results.append(parameters)
        if device == "chameleon" and optimizer.defaults.get("capturable"):
            assert set(steps) == {"chameleon"}
    assert all(map(same_bits, *results))
