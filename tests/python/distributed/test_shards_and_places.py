"""What needs no second rank to be seen."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.functional import scaled_dot_product_attention
from torch_chameleon import _ranks
from torch_chameleon._patches import sharded_attention


@pytest.fixture
def mesh():
    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("chameleon", (1,))
    dist.destroy_process_group()


def test_sharded_random_numbers_are_the_generator_s(mesh):
    """Its state is the CPU's here, and has no offset to move."""
    sharded = distribute_tensor(torch.zeros(64, device="chameleon"), mesh)
    torch.manual_seed(3)
    with pytest.warns(UserWarning, match="complete support on chameleon"):
        nn.init.uniform_(sharded)
    torch.manual_seed(3)
    expected = torch.empty(64).uniform_()
    assert torch.equal(sharded.full_tensor().cpu(), expected)


def test_sharded_random_numbers_with_an_offset(mesh, monkeypatch):
    """As on cuda: what torch asks for itself."""
    from torch.distributed.tensor import _dispatch, _random
    from torch_chameleon._patches import sharded_random

    state = torch.zeros(16, dtype=torch.uint8)
    monkeypatch.setattr(
        sharded_random.chameleon, "get_rng_state", lambda: state
    )
    for module in (_dispatch, _random):
        assert module.is_rng_supported_mesh(mesh)


def test_shards_of_the_cpu_are_asked_as_ever(mesh):
    on_cpu = init_device_mesh("cpu", (1,))
    sharded = distribute_tensor(torch.zeros(8), on_cpu, [Shard(0)])
    with pytest.warns(UserWarning, match="complete support on cpu"):
        nn.init.uniform_(sharded)


def sharded(mesh, *shape, place=None):
    tensor = torch.randn(*shape).to("chameleon").requires_grad_()
    return distribute_tensor(tensor, mesh, [place or Replicate()])


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (Shard(0), Shard(0)),  # each rank has its sequences
        (Shard(1), Shard(1)),  # its heads
        (Shard(2), Replicate()),  # every token asks all others
        (Replicate(), Replicate()),
    ],
)
def test_attention_is_where_its_operands_are(mesh, place, expected):
    operands = [sharded(mesh, 2, 4, 8, 16, place=place) for _ in range(3)]
    found = scaled_dot_product_attention(*operands)
    assert found.placements == (expected,)
    plain = [each.full_tensor().detach().cpu() for each in operands]
    assert torch.equal(
        found.full_tensor().cpu(), scaled_dot_product_attention(*plain)
    )


def test_attention_has_the_strides_that_its_shards_have(mesh):
    for swapped in (False, True):
        operands = [sharded(mesh, 2, 4, 8, 16) for _ in range(3)]
        if swapped:
            operands = [each.transpose(1, 2) for each in operands]
        found = scaled_dot_product_attention(*operands)
        assert found.stride() == found.to_local().stride()


@pytest.mark.parametrize(
    ("heads", "key_heads", "is_split"),
    [(6, 6, True), (8, 4, True), (6, 3, False), (8, 1, False)],
)
def test_heads_stay_with_the_keys_that_they_share(heads, key_heads, is_split):
    mesh = SimpleNamespace(size=lambda: 2)
    query, key = (
        SimpleNamespace(shape=(4, n, 8, 16), ndim=4, mesh=mesh, placements=())
        for n in (heads, key_heads)
    )
    ways = sharded_attention._forward(query, key, key, None, 0.0, True)
    assert ([Shard(1)] * 3 + [None] * 3 in [given for _, given in ways]) == (
        is_split
    )


def test_the_device_of_a_rank(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert not _ranks.is_launched()
    assert _ranks.device_of_rank() == torch.device("chameleon", 0)
    monkeypatch.setenv("LOCAL_RANK", "3")  # some scripts set it by themselves
    assert not _ranks.is_launched()
    monkeypatch.setenv("RANK", "11")
    monkeypatch.setenv("WORLD_SIZE", "16")
    assert _ranks.is_launched()
    monkeypatch.setattr(_ranks.chameleon, "device_count", lambda: 4)
    assert _ranks.device_of_rank() == torch.device("chameleon", 3)
    monkeypatch.setattr(_ranks.chameleon, "device_count", lambda: 1)
    assert _ranks.device_of_rank() == torch.device("chameleon", 0)


NCCL_IN_NAME = """
import torch, torch_chameleon
import torch.distributed as dist

torch_chameleon.as_cuda()
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(2, device="cuda"))
assert dist.get_backend() == "nccl"
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_group_that_is_nccl_in_name_ends_quietly():
    done = subprocess.run(
        [sys.executable, "-c", NCCL_IN_NAME],
        env={**os.environ, "CHAMELEON_PHYSICAL_DEVICE": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "No backend of type" not in done.stderr
