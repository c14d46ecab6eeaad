"""Our safetensors files, read by safetensors."""

import os

import pytest
import torch
import torch_chameleon
from support import MIB, moved, same_bits
from torch_chameleon import _C, _safetensors

safetensors_torch = pytest.importorskip("safetensors.torch")


def of_every_dtype(device):
    def bits():
        return torch.arange(16, dtype=torch.uint8).view(2, 8)

    return {
        f"{name} é": (
            bits().bool()
            if name == "bool"
            else bits().view(getattr(torch, name))
        ).to(device)
        for name in _safetensors._DTYPES
    }


def test_bytes_are_those_of_safetensors(tmp_path):
    tensors = {
        **of_every_dtype("cpu"),
        "scalar": torch.ones(()),
        "empty": torch.zeros(0, 3),
    }
    ours = {name: tensor.to("chameleon") for name, tensor in tensors.items()}
    metadata = {"format": "pt"}
    torch_chameleon.save_safetensors(ours, tmp_path / "ours", metadata)
    safetensors_torch.save_file(tensors, tmp_path / "theirs", metadata)
    assert (tmp_path / "ours").read_bytes() == (
        tmp_path / "theirs"
    ).read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["ours", "theirs"]


def test_their_save_file_works_too(tmp_path):
    x = torch.randn(3, 4, device="chameleon")
    safetensors_torch.save_file({"x": x}, tmp_path / "x")
    assert same_bits(safetensors_torch.load_file(tmp_path / "x")["x"], x)


def test_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(_safetensors, "_CHUNK_BYTES", 1000)
    x = torch.randn(1234, device="chameleon")
    torch_chameleon.save_safetensors({"x": x}, tmp_path / "x")
    assert same_bits(safetensors_torch.load_file(tmp_path / "x")["x"], x)


def test_it_comes_from_the_host_without_a_fault(tmp_path, tight):
    tight(2 * MIB)
    tensors = {
        str(i): torch.full((MIB // 4,), float(i), device="chameleon")
        for i in range(6)
    }
    _C.evict_all(0)
    torch_chameleon.reset_swap_stats()
    path = tmp_path / "x"
    change = moved(lambda: torch_chameleon.save_safetensors(tensors, path))
    assert change["bytes_in"] == change["faults"] == 0
    assert change["resident_bytes"] == change["peak_resident_bytes"] == 0
    assert change["peak_host_bytes"] == 0
    for name, value in safetensors_torch.load_file(path).items():
        assert same_bits(value, tensors[name])


def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x"
    x = torch.ones(3, device="chameleon")
    torch_chameleon.save_safetensors({"x": x}, path)
    before = path.read_bytes()

    def no_more(*of):
        raise KeyboardInterrupt

    monkeypatch.setattr(_safetensors, "_chunks", no_more)
    with pytest.raises(KeyboardInterrupt):
        torch_chameleon.save_safetensors({"x": x + 1}, path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda x: {"x": x.t()}, ValueError, "not contiguous"),
        (lambda x: {"x": x.to(torch.complex128)}, ValueError, "complex128"),
        (lambda x: {"x": x, "y": x[1:]}, RuntimeError, "share memory"),
        (lambda x: {"x": x.cpu().to_sparse()}, ValueError, "to_dense"),
    ],
)
def test_what_cannot_be_saved(tmp_path, make, kind, words):
    x = torch.ones(2, 3, device="chameleon")
    with pytest.raises(kind, match=words):
        torch_chameleon.save_safetensors(make(x), tmp_path / "x")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("names", "kind", "words"),
    [
        ([1], TypeError, "1 is no name"),
        (["w", None], TypeError, "None is no name"),
        (["__metadata__"], ValueError, "'__metadata__'"),
        (["\ud800"], ValueError, "surrogate"),
    ],
)
def test_names_that_no_reader_takes(tmp_path, names, kind, words):
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"old")
    x = torch.ones(2, device="chameleon")
    with pytest.raises(kind, match=words):
        torch_chameleon.save_safetensors(dict.fromkeys(names, x), path)
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize(
    ("metadata", "kind", "words"),
    [
        ({"epoch": 3}, TypeError, r"metadata\['epoch'\] is 3; .* str\(value"),
        ({"note": None}, TypeError, "is None"),
        ({7: "x"}, TypeError, r"metadata\[7\]"),
        ({"x": "y" * 100_000_000}, ValueError, "no reader"),
        ("abc", TypeError, "must be texts by texts"),
        ({"x": "\ud800"}, ValueError, "surrogate"),
    ],
)
def test_metadata_that_no_reader_takes(tmp_path, metadata, kind, words):
    path = tmp_path / "x"
    path.write_text("the old one")
    x = torch.ones(2, 3, device="chameleon")
    with pytest.raises(kind, match=words):
        torch_chameleon.save_safetensors({"x": x}, path, metadata)
    assert path.read_text() == "the old one"


# ---- reading to the device


@pytest.fixture
def file(tmp_path):
    tensors = {
        **of_every_dtype("cpu"),
        "scalar": torch.ones(()),
        "empty": torch.zeros(0, 3),
    }
    safetensors_torch.save_file(tensors, tmp_path / "x", {"format": "pt"})
    return tmp_path / "x", tensors


@pytest.mark.parametrize(
    "device", ["chameleon", "chameleon:0", torch.device("chameleon")], ids=str
)
def test_load_file(file, device):
    path, tensors = file
    loaded = safetensors_torch.load_file(path, device=device)
    assert loaded.keys() == tensors.keys()
    assert all(x.device == torch.device("chameleon:0") for x in loaded.values())
    assert all(same_bits(loaded[name], tensors[name]) for name in tensors)


def test_safe_open(file):
    from safetensors import safe_open

    path, tensors = file
    native = tensors["float32 é"]
    with safe_open(path, framework="pt", device="chameleon") as opened:
        assert sorted(opened.keys()) == sorted(tensors)
        assert opened.metadata() == {"format": "pt"}
        assert same_bits(opened.get_tensor("float32 é"), native)
        part = opened.get_slice("float32 é")
        assert part.get_shape() == list(native.shape)
        assert part[1:, 0].is_chameleon
        assert same_bits(part[1:, 0], native[1:, 0])
        assert len(opened.get_tensors()) == len(tensors)


def test_other_devices_are_safetensors_business(file):
    from safetensors import SafetensorError, safe_open

    path, tensors = file
    with safe_open(path, "pt") as opened:
        assert opened.get_tensor("scalar").device.type == "cpu"
    assert len(safetensors_torch.load_file(path, "cpu")) == len(tensors)
    with pytest.raises(SafetensorError, match="chameleo is invalid"):
        safe_open(path, "pt", device="chameleo")


def test_a_model_larger_than_the_budget_is_read(tmp_path, tight):
    tight(2 * MIB)
    tensors = {str(i): torch.randn(MIB // 4) for i in range(6)}
    safetensors_torch.save_file(tensors, tmp_path / "x")
    loaded = safetensors_torch.load_file(tmp_path / "x", device="chameleon")
    assert all(same_bits(loaded[name], tensors[name]) for name in tensors)


def test_who_imported_it_earlier(fresh, tmp_path):
    safetensors_torch.save_file({"x": torch.ones(2)}, tmp_path / "x")
    code = f"""
from safetensors.torch import load_file
from safetensors import safe_open
import torch, torch_chameleon, safetensors.torch
print(load_file("{tmp_path / "x"}", device="chameleon")["x"].device)
with safetensors.safe_open("{tmp_path / "x"}", "pt", "chameleon:0") as file:
    print(file.get_tensor("x").device)
"""
    assert fresh(code) == "chameleon:0\nchameleon:0"
