"""Saving, loading, copying, and data loaders."""

import copy
import io
import os
import pickle
import subprocess
import sys

import pytest
import torch
from support import same_bits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def saved(value):
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream


def loaded(stream, **how):
    stream.seek(0)
    return torch.load(stream, **how)


def test_round_trip():
    x = torch.randn(3, 4, device="chameleon")
    back = loaded(saved({"x": x, "view": x.t()}))
    assert back["x"].device == x.device
    assert same_bits(back["x"], x)
    back["x"].zero_()
    assert back["view"].eq(0).all()  # still one storage


@pytest.mark.parametrize(
    "location",
    ["cpu", torch.device("cpu"), {"chameleon:0": "cpu"}, lambda s, _: s.cpu()],
)
def test_load_to_cpu(location):
    x = torch.randn(3, device="chameleon")
    back = loaded(saved(x), map_location=location)
    assert back.device.type == "cpu"
    assert same_bits(back, x)


@pytest.mark.parametrize("location", ["chameleon", "chameleon:0"])
def test_load_to_chameleon(location):
    x = torch.randn(3)
    back = loaded(saved(x), map_location=location)
    assert back.is_chameleon
    assert same_bits(back, x)


def test_cpu_only_process_reads_it(fresh, tmp_path):
    x = torch.arange(3.0, device="chameleon")
    torch.save(x, tmp_path / "x.pt")
    code = f"""
import torch
print(torch.load({str(tmp_path / "x.pt")!r}, map_location="cpu").tolist())
"""
    assert fresh(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "[0.0, 1.0, 2.0]"


def test_old_file_format():
    x = torch.randn(3, device="chameleon")
    stream = io.BytesIO()
    torch.save(x, stream, _use_new_zipfile_serialization=False)
    assert same_bits(loaded(stream), x)


def test_missing_device_names_map_location():
    x = torch.ones(1)
    count = torch.chameleon.device_count()
    with pytest.raises(RuntimeError, match="map_location"):
        loaded(saved(x), map_location=f"chameleon:{count}")


@pytest.mark.parametrize(
    "copier", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies(copier):
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).to("chameleon")
    twin = copier(model)
    for a, b in zip(
        twin.state_dict().values(), model.state_dict().values(), strict=True
    ):
        assert a.is_chameleon
        assert a.data_ptr() != b.data_ptr()
        assert same_bits(a, b)
    assert isinstance(twin[0].weight, nn.Parameter)


def test_deepcopy_keeps_ties():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to("chameleon")
    model[1].weight = model[0].weight
    model(torch.ones(1, 2, device="chameleon")).sum().backward()
    twin = copy.deepcopy(model)
    assert twin[1].weight is twin[0].weight
    assert twin[0].weight.grad is None  # as torch does natively
    (
        x := torch.ones(2, device="chameleon", requires_grad=True)
    ).sum().backward()
    assert same_bits(copy.deepcopy(x).grad, x.grad)


def test_state_dict_both_ways():
    ours = nn.Linear(3, 3).to("chameleon")
    native = nn.Linear(3, 3)
    native.load_state_dict(ours.state_dict())
    assert same_bits(native.weight, ours.weight)
    with torch.no_grad():
        native.weight.fill_(2)
    weight = ours.weight
    ours.load_state_dict(native.state_dict())
    assert ours.weight is weight
    assert ours.weight.eq(2).all()
    ours.load_state_dict(
        nn.Linear(3, 3).to("chameleon").state_dict(), assign=True
    )
    assert ours.weight.is_chameleon


@pytest.mark.parametrize("start", ["cpu", "chameleon"])
def test_optimizer_state_both_ways(start):
    end = {"cpu": "chameleon", "chameleon": "cpu"}[start]
    torch.manual_seed(0)
    model = nn.Linear(3, 3).to(start)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    model(torch.ones(2, 3, device=start)).sum().backward()
    optimizer.step()
    other = nn.Linear(3, 3).to(end)
    other.load_state_dict(model.state_dict())
    resumed = torch.optim.AdamW(other.parameters(), foreach=True)
    resumed.load_state_dict(loaded(saved(optimizer.state_dict())))
    assert resumed.state[other.weight]["exp_avg"].device.type == end
    for net, step, device in (
        (model, optimizer, start),
        (other, resumed, end),
    ):
        net.zero_grad()
        net(torch.ones(2, 3, device=device)).sum().backward()
        step.step()
    assert same_bits(model.weight, other.weight)


@pytest.mark.parametrize(
    "workers", [0, pytest.param(1, marks=pytest.mark.slow)]
)
def test_data_loader_pins(workers):
    data = TensorDataset(torch.arange(10), torch.randn(10, 3))
    loader = DataLoader(
        data, batch_size=4, pin_memory=True, num_workers=workers
    )
    total = 0
    for index, values in loader:
        assert index.is_pinned()
        assert values.is_pinned()
        total += index.to("chameleon", non_blocking=True).sum().item()
    assert total == 45


def test_pinning():
    x = torch.ones(3)
    assert not x.is_pinned()
    pinned = x.pin_memory()
    assert pinned.is_pinned()
    assert same_bits(pinned, x)
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert not torch.ones(3, device="chameleon").is_pinned()
    with pytest.raises(RuntimeError, match="pin"):
        torch.ones(3, device="chameleon").pin_memory()


WITHOUT_THE_PACKAGE = """
import sys, torch
path = sys.argv[1]
for load in (
    lambda: torch.load(path),
    lambda: torch.ones(2, device="chameleon"),
):
    try:
        load()
    except RuntimeError as error:
        print(error)
print(torch.load(path, map_location="cpu"))
"""


@pytest.mark.slow
def test_loaded_without_the_package(tmp_path):
    path = tmp_path / "saved.pt"
    torch.save(torch.arange(3, device="chameleon"), path)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_PACKAGE, str(path)],
        env={**os.environ, "CHAMELEON_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    restore, device, value = done.stdout.splitlines()
    assert "restore data location" in restore
    assert "(tagged with chameleon:0)" in restore
    assert device.endswith("at start of device string: chameleon")
    assert value == "tensor([0, 1, 2])"
