"""One rank of several GPUs under `plan`: DDP, FSDP2, tensor parallelism."""

import os

import pytest
from plan_trials import run_plan, run_text
from torch_chameleon import plan
from torch_chameleon.plan.arguments import parse
from torch_chameleon.plan.process import ScriptError

HEAD = """
import os, sys, torch
import torch.distributed as dist
from torch import nn
dist.init_process_group("nccl")
assert (dist.get_rank(), dist.get_world_size()) == (0, 4)
assert int(os.environ["WORLD_SIZE"]) == 4
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
assert torch.cuda.device_count() == 4 // int(os.environ["GROUP_WORLD_SIZE"])
WIDTH = 1024
net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8))).to("cuda")
"""
TAIL = """
optimizer = torch.optim.AdamW(net.parameters(), foreach={foreach})
for step in range(6):
    loss = net(torch.ones(4096, WIDTH, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
"""
DDP = """
net = nn.parallel.DistributedDataParallel(net, device_ids=[local])
"""
FSDP = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cuda", (4,))
for layer in net:
    fully_shard(layer, mesh=mesh)
fully_shard(net, mesh=mesh)
"""
TENSOR_PARALLEL = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module)
mesh = init_device_mesh("cuda", (4,))
parallelize_module(net, mesh, {
    str(i): RowwiseParallel() if i % 2 else ColwiseParallel()
    for i in range(8)})
"""
PARAMETER_BYTES = 8 * (1024 * 1024 + 1024) * 4


def script(way, foreach=True):
    return HEAD + way + TAIL.format(foreach=foreach)


def step_of(text, folder, **given):
    """A point: the figures of a usual step."""
    usual = {"gpu": "rtx4090", "gpus": 4, "steps": 3}
    (point,) = run_text(text, folder, **(usual | given))["points"]
    return point


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_gradients_are_summed_beside_the_backward_pass(tmp_path):
    step = step_of(script(DDP), tmp_path / "out")
    # 3 / 4 of the gradients, twice, at 35 / 45 of 20 GB/s each way.
    sum_ns = 2 * 3 / 4 * PARAMETER_BYTES / (20 * 35 / 45)
    assert step["collective_ns"] == pytest.approx(sum_ns, rel=0.1)
    assert 0 < step["collective_wait_ns"] < step["collective_ns"]
    assert step["stall_ns"] == 0
    assert step["other_ns"] <= 1


def test_sharded_parameters_take_less_memory(tmp_path):
    ddp = step_of(script(DDP), tmp_path / "ddp")
    fsdp = step_of(script(FSDP), tmp_path / "fsdp")
    assert fsdp["peak_logical_bytes"] < ddp["peak_logical_bytes"]
    # All parameters are gathered twice, and gradients are scattered once.
    gather_ns = 3 / 4 * PARAMETER_BYTES / (20 * 35 / 45)
    assert fsdp["collective_ns"] > 2 * gather_ns


def test_a_layer_in_four_parts(tmp_path):
    step = step_of(script(TENSOR_PARALLEL, foreach=False), tmp_path / "out")
    assert step["collective_ns"] > 0
    whole = step_of(script(DDP), tmp_path / "whole")
    assert step["compute_ns"] < whole["compute_ns"]


def test_another_machine_is_farther(tmp_path):
    here = step_of(script(DDP), tmp_path / "here", gpu="h100")
    there = step_of(script(DDP), tmp_path / "there", gpu="h100", nodes=2)
    slow = step_of(
        script(DDP),
        tmp_path / "slow",
        gpu="base=h100, network=1.25GB/s",
        nodes=2,
    )
    times = [each["collective_ns"] for each in (here, there, slow)]
    assert times == sorted(times)
    assert times[2] > 4 * times[0]


def test_collectives_beside_swapping(tmp_path):
    room = step_of(script(DDP), tmp_path / "room")
    budget = int(room["peak_logical_bytes"] / 1.5)
    less = step_of(
        script(DDP), tmp_path / "less", budgets=[budget], host=1 << 34
    )
    assert less["bytes_in"] > 0
    assert less["duration_ns"] > room["duration_ns"]
    # They share the link to the host with what swaps.
    assert less["collective_ns"] > room["collective_ns"]


def test_spawned_processes_are_the_first_of_them(tmp_path):
    text = f"""
import torch.multiprocessing as mp
def main(rank):
    assert rank == 0
    exec({script(DDP)!r}, globals())
if __name__ == "__main__":
    mp.spawn(main, nprocs=4)
"""
    assert step_of(text, tmp_path / "out")["collective_ns"] > 0


def test_objects_are_this_ranks_own(tmp_path):
    objects = """
found = [None] * 4
dist.all_gather_object(found, {"rank": 0})
assert found == [{"rank": 0}] * 4
got = [None] * 4
dist.gather_object(7, got)
assert got == [7] * 4
mine = [None]
dist.scatter_object_list(mine, ["a", "b", "c", "d"])
assert mine == ["a"]
half = dist.new_group([0, 1], backend="nccl")
assert dist.get_world_size(half) == 2
"""
    assert step_of(script(objects + DDP), tmp_path / "out")["steps"] >= 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "dist.recv(torch.ones(4, device='cuda'), 1)",
            "when that one sends is not modelled",
        ),
        (
            "dist.destroy_process_group()"
            "\ndist.init_process_group('nccl', world_size=8, rank=0)",
            "group of 8 processes; a plan of that is one of --gpus 8",
        ),
        (
            "dist.destroy_process_group()"
            "\ndist.init_process_group('nccl', world_size=4, rank=3)",
            "says that it is rank 3; plan is rank 0",
        ),
        (
            "import torch.multiprocessing as mp\nmp.spawn(print, nprocs=3)",
            "starts 3 processes",
        ),
    ],
)
def test_what_no_cluster_is_modelled_of(tmp_path, text, sentence):
    with pytest.raises(ScriptError, match=sentence):
        step_of(HEAD + text, tmp_path / "out")


def test_a_script_without_a_group(tmp_path):
    text = """
import torch
net = torch.nn.Linear(8, 8).to("cuda")
optimizer = torch.optim.SGD(net.parameters())
for step in range(4):
    net(torch.ones(2, 8, device="cuda")).sum().backward()
    optimizer.step()
"""
    with pytest.raises(ScriptError, match="makes no process group"):
        step_of(text, tmp_path / "out")


def test_the_answer_says_what_collectives_cost(tmp_path):
    (tmp_path / "train.py").write_text(script(DDP))
    done = run_plan(
        *("--gpu", "h100", "--gpus", "4", "--nodes", "2"),
        *("--network", "100Gbit", "--steps", "3", "train.py"),
    )
    assert done.returncode == 0, done.stderr
    assert "train.py on 4 x h100 in 2 machines, each GPU" in done.stdout
    assert "not hidden behind compute" in done.stdout
    assert (
        "NVLink, 371 GB/s each way; between machines 100 Gbit/s for each GPU "
        "(--network)" in done.stdout
    )


@pytest.mark.slow
def test_the_table_of_fewer_gpus(tmp_path):
    text = script(DDP).replace("== (0, 4)", "> (0, 0)").replace("== 4", "> 0")
    (tmp_path / "train.py").write_text(text)
    done = run_plan("--gpus", "4", "--table", "--steps", "3", "train.py")
    assert done.returncode == 0, done.stderr
    assert "GPU time" in done.stdout


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--gpus", "3", "--nodes", "2"], "not equally many"),
        (["--gpus", "0"], "must be a number, 1 or more"),
        (["--network", "400"], "must be a rate with its unit"),
    ],
)
def test_wrong_options(capsys, options, sentence):
    with pytest.raises(SystemExit):
        plan.main([*options, __file__])
    assert sentence in capsys.readouterr().err


def test_rates(tmp_path):
    for text, rate in (
        ("400Gbit", 50e9),
        ("10Gb/s", 1.25e9),
        ("50GB", 50e9),
        ("1GiB/s", 1 << 30),
    ):
        assert parse(["--network", text, os.fspath(__file__)]).network == rate
