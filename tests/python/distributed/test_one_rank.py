"""Groups of one rank: names, errors, and what a group keeps of its tensors."""

import gc
import pickle

import pytest
import torch
import torch.distributed as dist
import torch_chameleon
from support import MIB, dropping, needs_testing
from torch import nn
from torch._C import _distributed_c10d
from torch._C._distributed_c10d import FakeProcessGroup
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch_chameleon import _C

HERE = torch.device("chameleon", 0)


def begin(*given, **options):
    dist.init_process_group(
        *given, store=dist.HashStore(), rank=0, world_size=1, **options
    )


@pytest.fixture(autouse=True)
def destroyed():
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
    # Torch keeps the byte that it gave to its last barrier: the CPU's now.
    begin("gloo")
    dist.barrier()
    dist.destroy_process_group()


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))


def trained(net, device):
    """Each step's loss."""
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


# ---- names ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "options", "backend"),
    [
        ((), {}, "undefined"),  # as torch says of a group without a name
        (("gloo",), {}, "gloo"),
        (("nccl",), {}, "nccl"),
        (("chameleon",), {}, "chameleon"),
        (("cpu:gloo,chameleon:gloo",), {}, "cpu:gloo,chameleon:gloo"),
        (("cpu:gloo,chameleon:nccl",), {}, "cpu:gloo,chameleon:nccl"),
        ((), {"device_id": HERE}, "chameleon"),
        ((), {"device_id": 0}, "chameleon"),
        (("gloo",), {"device_id": HERE}, "gloo"),
    ],
)
def test_a_group_has_the_device_by_whatever_name(given, options, backend):
    begin(*given, **options)
    assert dist.get_backend() == backend
    ours, other = torch.ones(3, device="chameleon"), torch.ones(3)
    dist.all_reduce(ours)
    dist.all_reduce(other)  # gloo's too
    part = dist.new_group([0])
    dist.all_reduce(ours, group=part)
    dist.barrier()
    assert ours.tolist() == other.tolist() == [1, 1, 1]


def test_checks_of_collectives_can_be_on(monkeypatch):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    dist.set_debug_level_from_env()
    try:
        begin()
        ours = torch.ones(3, device="chameleon")
        dist.all_reduce(ours)
        assert ours.tolist() == [1, 1, 1]
    finally:
        monkeypatch.undo()
        dist.set_debug_level_from_env()


def test_a_group_without_its_tensors_is_as_before():
    begin("gloo")
    assert dist.group.WORLD.name() == "gloo"
    c10d = torch.distributed.distributed_c10d
    assert c10d._get_object_coll_device() == "cpu"
    dist.monitored_barrier()


def recorded():
    """What torch's flight recorder has, without times and numbers."""
    found = pickle.loads(_distributed_c10d._dump_fr_trace())["entries"]
    kinds = "input_sizes", "input_dtypes", "output_sizes", "output_dtypes"
    names = "process_group", "profiling_name", *kinds, "state", "timeout_ms"
    return [{name: entry[name] for name in names} for entry in found]


def test_the_flight_recorder_has_what_it_has_natively():
    found = {}
    for device in ("cpu", "chameleon"):
        begin("gloo")
        count = len(recorded())
        x = torch.ones(6, dtype=torch.float64, device=device)
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        dist.all_gather_into_tensor(torch.empty_like(x), x)
        dist.all_to_all_single(torch.empty_like(x), x)
        found[device] = recorded()[count:]
        dist.destroy_process_group()
    assert len(found["cpu"]) == 4
    assert found["chameleon"] == found["cpu"]


# ---- values ---------------------------------------------------------------


def test_averages_and_lists_that_gloo_lacks():
    begin()
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        tensor = torch.full((4,), 6, dtype=dtype, device="chameleon")
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        assert tensor.tolist() == [6, 6, 6, 6]
    square = torch.arange(4.0, device="chameleon").view(2, 2)
    for shape in ((4,), (1, 2, 2)):  # NCCL counts elements
        row = torch.empty(shape, device="chameleon")
        dist.all_gather_into_tensor(row, square)
        dist.reduce_scatter_tensor(square, row)
        assert row.flatten().tolist() == [0, 1, 2, 3]
    given = [torch.arange(3.0, device="chameleon")]
    got = [torch.empty(3, device="chameleon")]
    dist.all_to_all(got, given)
    assert got[0].tolist() == [0, 1, 2]


def test_fully_shard_trains_with_the_same_bits():
    begin("gloo")
    net = model().to("chameleon")
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=init_device_mesh("chameleon", (1,)))
    plain = model()
    ours = fully_shard(net)
    assert trained(ours, "chameleon") == trained(plain, "cpu")
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        assert one.to_local().is_chameleon
        assert torch.equal(one.full_tensor().cpu(), other)


def test_fully_shard_without_a_mesh_takes_the_device():
    begin("gloo")
    net = fully_shard(model())
    assert all(each.to_local().is_chameleon for each in net.parameters())
    assert trained(net, "chameleon") == trained(model(), "cpu")


# Its flattened parameters live on in torch's registry of hooks: a process of
# its own.
FSDP = """
import torch, torch_chameleon
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
net = FullyShardedDataParallel(
    nn.Linear(8, 8), device_id=torch.device("chameleon", 0)
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
net(torch.ones(2, 8, device="chameleon")).sum().backward()
before = sum(p.sum().item() for p in net.parameters())
optimizer.step()
print(round(before - sum(p.sum().item() for p in net.parameters()), 3))
dist.destroy_process_group()
"""


def test_fsdp_trains(fresh):
    # 64 weights with a gradient of 2, 8 biases with one of 2, half of it.
    assert fresh(FSDP) == "72.0"


def test_power_sgd_beside_a_gpu_waits_for_this_device(monkeypatch):
    """It calls torch.cuda.synchronize with its gradients' device."""
    waited = []
    monkeypatch.setattr(torch.chameleon, "synchronize", waited.append)
    torch.cuda.synchronize(HERE)
    assert waited == [HERE]


@needs_testing
def test_a_collective_never_runs_again():
    """What it wrote is swapped; what it read may be made again."""
    from torch_chameleon import _testing

    begin()
    with dropping("record"):
        made = torch.randn(MIB // 4, device="chameleon") * 2
        expected = made.cpu()
        dist.all_reduce(made)
        assert not _testing.drop(made)
        _testing.drop_all()
        assert torch.equal(made.cpu(), expected)


# ---- errors, and what is kept ---------------------------------------------


def pins(tensor):
    from torch_chameleon import _testing

    return _testing.block_state(tensor)["pins"]


@needs_testing
def test_tensors_of_two_devices_are_one_sentence():
    begin()
    ours = torch.ones(3, device="chameleon")
    for lists in ([torch.empty(3)], [torch.empty(3, device="chameleon")]):
        other = ours if lists[0].device.type == "cpu" else torch.ones(3)
        group = dist.group.WORLD._get_backend(HERE)
        with pytest.raises(ValueError, match="of one device.* on cpu"):
            group.allgather([lists], [other])
    assert pins(ours) == 0
    dist.all_reduce(ours)
    assert ours.tolist() == [1, 1, 1]


@needs_testing
def test_what_gloo_refuses_leaves_nothing_behind():
    begin()
    first = torch.ones(3, device="chameleon")
    other = torch.ones(3, dtype=torch.float64, device="chameleon")
    with pytest.raises(RuntimeError, match="invalid root rank"):
        dist.group.WORLD._get_backend(HERE).broadcast(first, 5)
    with pytest.raises(RuntimeError, match="invalid tensor"):
        dist.group.WORLD._get_backend(HERE).allgather([[other]], [first])
    gc.collect()
    assert pins(first) == pins(other) == 0
    assert first.tolist() == [1, 1, 1]


@needs_testing
def test_a_work_that_nobody_waits_for_ends_by_itself():
    begin()
    tensor = torch.ones(1000, device="chameleon")
    works = [dist.all_reduce(tensor, async_op=True) for _ in range(50)]
    del works
    dist.barrier()
    for _ in range(1000):
        if pins(tensor) == 0:
            break
        torch.ones(1000).sum()
    assert tensor.sum().item() == 1000


@needs_testing
def test_a_receive_that_is_given_up_lets_go():
    group = _C.ProcessGroup(FakeProcessGroup._create_internal(0, 2), False)
    received = torch.zeros(4, device="chameleon")
    work = group.recv([received], 1, 7)
    assert pins(received) == 1
    del work
    assert pins(received) == 0
    group.recv([received], 1, 7).wait()
    assert pins(received) == 0
    assert received.tolist() == [0, 0, 0, 0]


def test_a_bucket_that_does_not_fit_names_the_knobs():
    begin()
    tensor = torch.ones(MIB, device="chameleon")  # 4 MiB
    budget = torch_chameleon.config.hbm_budget
    torch_chameleon.config.hbm_budget = 2 * MIB
    try:
        with pytest.raises(
            torch.OutOfMemoryError, match="hbm_budget(.|\n)*bucket_cap_mb"
        ):
            dist.all_reduce(tensor)
    finally:
        torch_chameleon.config.hbm_budget = budget
    dist.all_reduce(tensor)
    assert tensor.sum().item() == MIB


def test_a_model_that_ddp_cannot_copy_says_what_to_do():
    """It needs the model, and that as one tensor, at once: not a byte more."""
    begin()
    net = nn.ParameterList(torch.zeros(MIB // 4) for _ in range(8))
    net.to("chameleon")
    budget = torch_chameleon.config.hbm_budget
    torch_chameleon.config.hbm_budget = 16 * MIB - 1
    try:
        with pytest.raises(
            torch.OutOfMemoryError, match=r"16\.00 MiB(.|\n)*init_sync=False"
        ):
            nn.parallel.DistributedDataParallel(net)
        copied = nn.parallel.DistributedDataParallel(net, init_sync=False)
        assert copied.broadcast_bucket_size == 250 * MIB
        torch_chameleon.config.hbm_budget = 16 * MIB
        nn.parallel.DistributedDataParallel(net)
    finally:
        torch_chameleon.config.hbm_budget = budget
