"""One rank with gloo: what python/docs/limits.md says of several GPUs."""

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

NO_BACKEND = "No backend type associated with device type chameleon"


@pytest.fixture(autouse=True)
def one_rank():
    dist.init_process_group(
        "gloo", store=dist.HashStore(), rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))


def trained(net, device):
    """Each step's loss and the last gradient."""
    torch.manual_seed(1)
    batch = torch.randn(16, 64).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = net(batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def sharded(mesh):
    net = model().to("chameleon")
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def test_fully_shard_trains_with_the_same_bits():
    ours, plain = sharded(init_device_mesh("chameleon", (1,))), model()
    assert trained(ours, "chameleon") == trained(plain, "cpu")
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        assert one.to_local().is_chameleon
        assert torch.equal(one.full_tensor().cpu(), other)


def test_fully_shard_without_a_mesh_takes_the_device():
    net = fully_shard(model())
    assert all(each.to_local().is_chameleon for each in net.parameters())
    assert trained(net, "chameleon") == trained(model(), "cpu")


def test_ddp_cannot_be_made():
    with pytest.raises(RuntimeError, match=NO_BACKEND):
        nn.parallel.DistributedDataParallel(model().to("chameleon"))


# Its flattened parameters, and with them the step that failed, live on in
# torch's registry of hooks: a process of its own.
FSDP = """
import torch, torch_chameleon
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
net = FullyShardedDataParallel(
    nn.Linear(8, 8), device_id=torch.device("chameleon", 0)
)
loss = net(torch.ones(2, 8, device="chameleon")).sum()
try:
    loss.backward()
except RuntimeError as error:
    print(error)
# Autograd's thread gives up the failed backward, with its Python callbacks,
# before it takes up another one. Were it late, it would find no interpreter.
torch.ones(1, device="chameleon", requires_grad=True).sum().backward()
dist.destroy_process_group()
"""


def test_fsdp_fails_in_backward(fresh):
    assert fresh(FSDP) == NO_BACKEND


def collectives(one):
    other = torch.empty_like(one)
    return {
        "all_reduce": lambda: dist.all_reduce(one),
        "broadcast": lambda: dist.broadcast(one, 0),
        "all_gather": lambda: dist.all_gather([other], one),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(
            other, one
        ),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(other, one),
    }


@pytest.mark.parametrize("name", collectives(torch.empty(0)))
def test_collectives_have_no_backend(name):
    one = torch.ones(4, device="chameleon")
    with pytest.raises(RuntimeError, match=NO_BACKEND):
        collectives(one)[name]()
    assert one.tolist() == [1, 1, 1, 1]


def test_what_needs_no_tensor_of_the_device_works():
    dist.barrier()
    objects = [{"epoch": 3}]
    dist.broadcast_object_list(objects)
    assert objects == [{"epoch": 3}]


UNDER_TORCHRUN = """
import torch, torch_chameleon
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
net = fully_shard(nn.Linear(8, 8))
net(torch.ones(2, 8, device="chameleon")).sum().backward()
print(net.weight.grad.full_tensor().sum().item())
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_torchrun(tmp_path):
    (tmp_path / "train.py").write_text(UNDER_TORCHRUN)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc_per_node", "1", tmp_path / "train.py"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "128.0\n"
