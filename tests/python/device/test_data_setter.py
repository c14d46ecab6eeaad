"""`x.data = y`, which offloading code writes in every direction."""

import gc

import pytest
import torch
from support import same_bits
from torch import nn
from torch_chameleon import _C

DEVICES = ("cpu", "chameleon")


@pytest.fixture(params=[(a, b) for a in DEVICES for b in DEVICES])
def ways(request):
    return request.param


def test_a_parameter_keeps_its_identity(ways):
    first, second = ways
    p = nn.Parameter(torch.arange(4.0, device=first))
    optimizer = torch.optim.SGD([p], lr=1.0)
    before = id(p)
    p.data = (p.data * 2).to(second)
    assert (id(p), p.device.type) == (before, second)
    assert p.is_leaf
    assert p.requires_grad
    (p * 3).sum().backward()
    assert p.grad.device.type == second
    optimizer.step()
    assert p.tolist() == [-3, -1, 1, 3]


def test_its_gradient_follows_a_graph_that_came_before(ways):
    """The accumulator of a leaf is renewed, as natively."""
    first, second = ways
    p = nn.Parameter(torch.ones(3, device=first))
    (p * 2).sum().backward()
    p.data = torch.full((3,), 5.0, device=second)
    p.grad = None
    (p * p).sum().backward()
    assert p.grad.device.type == second
    assert p.grad.tolist() == [10] * 3


def test_shape_and_dtype_follow(ways):
    first, second = ways
    x = torch.ones(4, device=first)
    x.data = torch.arange(6, device=second, dtype=torch.float64).view(2, 3).t()
    assert (x.shape, x.dtype, x.stride()) == ((3, 2), torch.float64, (1, 3))
    assert x.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_an_empty_one_frees_the_bytes(ways):
    """How a model that waits is kept off the device."""
    first, second = ways
    gc.collect()
    before = _C.swap_stats(0)["logical_bytes"]
    p = nn.Parameter(torch.ones(1024, device=first))
    p.data = torch.empty(0, device=second)
    assert _C.swap_stats(0)["logical_bytes"] == before
    assert p.shape == (0,)
    p.data = torch.ones(1024, device=first)
    assert p.sum().item() == 1024


def test_versions_are_not_shared(ways):
    first, second = ways
    x, y = torch.ones(2, device=first), torch.ones(2, device=second)
    y.add_(1)
    x.data = y
    assert (x._version, y._version) == (0, 1)
    y.add_(1)
    assert x.tolist() == [3, 3]
    assert (x._version, y._version) == (0, 2)


def test_optimizer_state_goes_to_the_host_and_back():
    results = []
    for device in DEVICES:
        torch.manual_seed(0)
        net = nn.Linear(16, 16).to(device)
        optimizer = torch.optim.AdamW(net.parameters())
        for _ in range(4):
            net(torch.ones(2, 16, device=device)).square().sum().backward()
            for state in optimizer.state.values():
                for value in state.values():
                    value.data = value.to(device, non_blocking=True)
            optimizer.step()
            optimizer.zero_grad()
            for state in optimizer.state.values():
                for value in state.values():
                    value.data = value.to("cpu", non_blocking=True)
        results.append([p.detach().cpu() for p in net.parameters()])
    assert all(map(same_bits, *results))


def test_gradients_go_to_the_host():
    p = nn.Parameter(torch.ones(4, device="chameleon"))
    p.grad = torch.full((4,), 2.0, device="chameleon")
    p.grad.data = p.grad.data.cpu()
    assert p.grad.device.type == "cpu"
    assert p.grad.tolist() == [2] * 4


def test_block_swap_trains_as_ever():
    """One layer at a time is on the device, forward and backward."""
    results = []
    for device in DEVICES:
        torch.manual_seed(0)
        layers = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)))
        waiting = [[p.data for p in layer.parameters()] for layer in layers]
        for layer in layers:
            for p in layer.parameters():
                p.data = p.data.to(device)
        x = torch.ones(2, 32, device=device)
        for layer, kept in zip(layers, waiting, strict=True):
            x = layer(x).tanh()
            with torch.no_grad():
                for p, host in zip(layer.parameters(), kept, strict=True):
                    host.copy_(p)
        results.append(x.detach().cpu())
    assert same_bits(*results)


@pytest.mark.parametrize(
    "other",
    [
        lambda: torch.ones(2, device="meta"),
        lambda: torch.ones(2).to_sparse(),
    ],
)
def test_what_has_no_bytes_there_is_refused(other):
    """As for CUDA's tensors."""
    x = torch.ones(2, device="chameleon")
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        x.data = other()
    assert x.tolist() == [1, 1]


# ---- sparse tensors

SPARSE = {
    "coo": lambda x: x.to_sparse(),
    "csr": lambda x: x.to_sparse_csr(),
    "csc": lambda x: x.to_sparse_csc(),
    "bsr": lambda x: x.to_sparse_bsr((1, 1)),
}


@pytest.mark.parametrize("layout", SPARSE)
def test_sparse_tensors(ways, layout):
    first, second = ways
    if (first, second) == ("cpu", "cpu") and layout != "coo":
        pytest.skip("PyTorch copies the keys, and leaves what they are of")
    x = SPARSE[layout](torch.eye(3)).to(first)
    y = SPARSE[layout](torch.arange(9.0).view(3, 3)).to(second)
    before = id(x)
    x.data = y
    assert (id(x), x.device.type) == (before, second)
    assert x.layout == y.layout
    assert x.to_dense().tolist() == y.to_dense().tolist()
    assert (x * 2).to_dense().tolist() == (2 * y.to_dense()).tolist()


def test_sparse_inference_tensors(ways):
    first, second = ways
    x = torch.eye(3).to_sparse().to(first)
    with torch.inference_mode():
        y = (torch.arange(9.0).view(3, 3).to_sparse() * 1).to(second)
    x.data = y
    assert x.device.type == second
    assert x.to_dense().tolist() == torch.arange(9.0).view(3, 3).tolist()


def test_sparse_data_of_another_kind():
    x = torch.eye(3).to_sparse().requires_grad_()
    y = torch.eye(3, device="chameleon").to_sparse_csr()
    for wrong in (y, y.to_dense()):
        with pytest.raises(RuntimeError, match="incompatible tensor type"):
            x.data = wrong
    with pytest.raises(RuntimeError, match="must be floating point"):
        x.data = torch.eye(3, dtype=torch.int64, device="chameleon").to_sparse()
    assert x.to_dense().tolist() == torch.eye(3).tolist()
    with pytest.raises(RuntimeError, match="Deleting tensor data"):
        del x.data
