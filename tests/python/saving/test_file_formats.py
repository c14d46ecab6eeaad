"""torch.save and torch.load: both formats, every map_location, both ways."""

import pickle

import pytest
import torch
from support import same_bits

HERE = "chameleon:0"


@pytest.fixture(params=["zip", "legacy"])
def through(request, tmp_path):
    """A function that saves a value into a file and loads it again."""

    def run(value, **how):
        path = tmp_path / "value.pt"
        zip_file = request.param == "zip"
        torch.save(value, path, _use_new_zipfile_serialization=zip_file)
        return torch.load(path, **how)

    run.format = request.param
    return run


LOCATIONS = {
    "none": (None, "{}"),
    "cpu": ("cpu", "cpu"),
    "chameleon": ("chameleon", HERE),
    "with index": (HERE, HERE),
    "device": (torch.device("cpu"), "cpu"),
    "our device": (torch.device("chameleon", 0), HERE),
    "dict": ({HERE: "cpu", "cpu": HERE}, None),
    "dict of others": ({"cuda:0": "cpu"}, "{}"),
    "function": (lambda storage, location: storage, "cpu"),
    "function that moves": (lambda storage, _: storage.chameleon(), HERE),
    "function that declines": (lambda storage, location: None, "{}"),
    "meta": ("meta", "meta"),
}


@pytest.mark.parametrize("source", ["cpu", HERE])
@pytest.mark.parametrize("name", LOCATIONS)
def test_map_location(through, name, source):
    location, expected = LOCATIONS[name]
    if expected is None:  # the dict exchanges them
        expected = {"cpu": HERE, HERE: "cpu"}[source]
    x = torch.arange(6.0).view(2, 3)
    value = {"x": x.to(source), "view": (y := x.to(source))[1:], "y": y}
    weights_only = not callable(location) or None
    loaded = through(value, map_location=location, weights_only=weights_only)
    for key, tensor in loaded.items():
        assert str(tensor.device) == expected.format(source)
        if expected != "meta":
            assert same_bits(tensor, value[key])
    if expected != "meta":
        loaded["y"].zero_()
        assert loaded["view"].eq(0).all()  # one storage, saved once


KINDS = {
    "dtypes": lambda: [
        torch.ones(3, device="chameleon").to(dtype)
        for dtype in (
            torch.float64,
            torch.bfloat16,
            torch.float16,
            torch.int64,
            torch.uint8,
            torch.bool,
            torch.complex64,
            torch.float8_e4m3fn,
        )
    ],
    "shapes": lambda: [
        torch.empty(0, 3, device="chameleon"),
        torch.ones((), device="chameleon"),
        torch.randn(4, 6, device="chameleon").t()[1:, ::2],
        torch.ones(1, device="chameleon").expand(5),
    ],
    "lazy bits": lambda: [
        torch.randn(3, dtype=torch.cfloat, device="chameleon").conj(),
        torch.randn(3, dtype=torch.cfloat, device="chameleon").conj().imag,
    ],
    "parameters": lambda: [
        torch.nn.Parameter(torch.randn(3, device="chameleon")),
        torch.ones(3, device="chameleon", requires_grad=True),
        torch.nn.Buffer(torch.ones(2, device="chameleon")),
    ],
}


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("name", KINDS)
def test_kinds(through, name, weights_only):
    values = KINDS[name]()
    if through.format == "legacy":  # torch has no typed storage for float8
        values = [x for x in values if x.dtype != torch.float8_e4m3fn]
    loaded = through(values, weights_only=weights_only)
    for one, other in zip(values, loaded, strict=True):
        assert other.device == one.device
        assert other.stride() == one.stride()
        assert other.requires_grad == one.requires_grad
        assert type(other) is type(one)
        assert other.is_conj() == one.is_conj()
        assert other.is_neg() == one.is_neg()
        if one.dtype == torch.float8_e4m3fn:
            one, other = one.view(torch.uint8), other.view(torch.uint8)
        assert same_bits(one.resolve_conj(), other.resolve_conj())


@pytest.mark.parametrize("location", [None, "cpu", "chameleon"])
def test_storages(through, location):
    x = torch.arange(3.0, device="chameleon")
    value = [x.untyped_storage()] * 2
    if through.format == "legacy":  # which knows typed storages only
        value = [x, x.storage()]
    loaded = through(value, map_location=location, weights_only=False)
    expected = "cpu" if location == "cpu" else "chameleon"
    assert loaded[1].device.type == expected
    assert loaded[1].data_ptr() == loaded[0].data_ptr()
    assert bytes(loaded[1].cpu().untyped()) == bytes(x.cpu().numpy())


def test_module_and_optimizer(through):
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    net.to("chameleon")
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(4, 3, device="chameleon")).sum().backward()
    optimizer.step()
    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
    loaded = through(state, weights_only=True, map_location="cpu")
    for key, value in net.state_dict().items():
        assert same_bits(loaded["net"][key], value)
    whole = through(net, weights_only=False)
    assert whole[0].weight.is_chameleon
    assert same_bits(whole[0].weight, net[0].weight)


@pytest.mark.parametrize("location", [None, "cpu", "chameleon", {HERE: "cpu"}])
def test_mmap(tmp_path, location):
    x = torch.arange(24.0, device="chameleon").view(4, 6)
    torch.save([x, x.t()], tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt", mmap=True, map_location=location)
    ours = location in (None, "chameleon")
    for one, other in zip([x, x.t()], loaded, strict=True):
        assert other.is_chameleon == ours
        assert same_bits(one, other)
    assert loaded[0].data_ptr() == loaded[1].data_ptr()
    loaded[0].zero_()  # private to this process
    assert same_bits(torch.load(tmp_path / "x.pt")[0], x)


def test_fake_tensors_can_be_loaded(tmp_path):
    from torch._subclasses import FakeTensorMode

    torch.save(torch.ones(3, device="chameleon"), tmp_path / "x.pt")
    with FakeTensorMode():
        fake = torch.load(tmp_path / "x.pt")
    assert fake.device == torch.device(HERE)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(protocol):
    x = torch.randn(3, 2, device="chameleon").t()
    y = pickle.loads(pickle.dumps(x, protocol=protocol))
    assert y.is_chameleon
    assert y.stride() == x.stride()
    assert same_bits(x, y)


def test_evicted_tensors_are_read_where_they_are(tmp_path):
    from support import moved
    from torch_chameleon import _C

    x = torch.randn(1000, device="chameleon")
    _C.evict(x)
    difference = moved(lambda: torch.save(x, tmp_path / "x.pt"))
    assert difference["faults"] == difference["bytes_in"] == 0
    assert same_bits(torch.load(tmp_path / "x.pt"), x)
