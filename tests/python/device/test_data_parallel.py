"""nn.DataParallel, which torch would take the device for CUDA in."""

import pytest
import torch
from support import same_bits
from torch import nn
from torch_chameleon import _C


def layer():
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def test_a_module_on_the_cpu_stays_there():
    wrapped = nn.DataParallel(layer())
    x = torch.ones(4, 3)
    assert wrapped.device_ids == []
    assert wrapped(x).equal(layer()(x))
    assert list(wrapped.state_dict()) == ["module.weight", "module.bias"]


def test_a_module_on_one_device():
    """As on a machine with one GPU: inputs are moved, the module is called."""
    native, ours = layer(), layer().to("chameleon")
    wrapped = nn.DataParallel(ours, device_ids=[0])
    assert wrapped.module is ours
    x, y = (torch.ones(4, 3, requires_grad=True) for _ in range(2))
    native(x).sum().backward()
    wrapped(y).sum().backward()
    assert y.grad.equal(x.grad)
    assert same_bits(ours.weight.grad, native.weight.grad)


def test_a_module_that_is_moved_after_it_was_wrapped():
    wrapped = nn.DataParallel(layer()).to("chameleon")
    found = wrapped(torch.ones(4, 3))
    assert found.is_chameleon
    assert found.cpu().equal(layer()(torch.ones(4, 3)))


def test_inputs_in_containers():
    class Takes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer()

        def forward(self, pair, *, named):
            return self.layer(pair[0]) + named["x"], pair[1]

    wrapped = nn.DataParallel(Takes().to("chameleon"))
    found, text = wrapped(
        (torch.ones(4, 3), "text"), named={"x": torch.ones(2)}
    )
    assert found.is_chameleon
    assert text == "text"


@pytest.mark.parametrize("ids", [[0, 1], None])
def test_several_devices_are_for_ddp(ids, monkeypatch):
    module = layer().to("chameleon")
    if ids is None:
        monkeypatch.setattr(_C, "device_count", lambda: 2)
    with pytest.raises(
        RuntimeError,
        match=r"2 chameleon devices: use DistributedDataParallel, .*=\[0\]",
    ):
        nn.DataParallel(module, device_ids=ids)


def test_where_there_is_no_accelerator_for_it():
    with pytest.raises(RuntimeError, match="could not be determined"):
        nn.parallel.data_parallel(layer(), torch.ones(4, 3))


UNDER_TORCHRUN = """
import torch
from torch import nn
from torch.nn.parallel import comm

assert torch.cuda.device_count() == 2
try:
    nn.DataParallel(nn.Linear(3, 2)).cuda()(torch.ones(4, 3))
except RuntimeError as error:
    print(error)
ones = [torch.ones(3, device=device) for device in ("cuda:0", "cuda:1")]
total = comm.reduce_add(ones, 1)
print(total.device, total.tolist())
net = nn.Linear(3, 2).cuda()
nn.parallel.data_parallel(net, torch.ones(4, 3), [0, 1]).sum().backward()
print(net.weight.grad.tolist(), net.bias.grad.tolist())
"""


def test_a_script_for_cuda_under_torchrun(fresh):
    """There each process has all devices, which are two without a GPU."""
    said = fresh(
        UNDER_TORCHRUN,
        CHAMELEON_AS_CUDA="1",
        CHAMELEON_PHYSICAL_DEVICE="cpu",
        LOCAL_WORLD_SIZE="2",
        LOCAL_RANK="0",
    ).splitlines()
    assert "use DistributedDataParallel" in said[0]
    assert said[1:] == [
        "chameleon:1 [2.0, 2.0, 2.0]",
        "[[4.0, 4.0, 4.0], [4.0, 4.0, 4.0]] [4.0, 4.0]",
    ]
