"""What test_several_devices.py runs: all checks, in one process.

Prints what became of each, as JSON in the last line. Runs on two devices of
the cpu runtime, or on two emulated GPUs.
"""

import gc
import io
import json
import threading
import traceback

import emulated_cuda
import pytest
import torch
import torch_chameleon
from torch_chameleon import _C, _testing

MIB = 1 << 20
BUDGET = 8 * MIB
BOTH = ("chameleon:0", "chameleon:1")
torch.set_num_threads(1)
EMULATED = emulated_cuda.is_present()
torch_chameleon.config.hbm_budget = BUDGET
torch_chameleon.config.oversubscription = 16
if EMULATED:
    emulated_cuda.install()
else:
    torch_chameleon.config.physical_device = "cpu"
    _testing.set_cpu_devices(2)
outcomes = {}


def check(function):
    try:
        function()
        gc.collect()
        for index in range(2):
            torch.chameleon.synchronize(index)
            _C.check_invariants(index, 2)
        outcomes[function.__name__] = "ok"
    except Exception:
        outcomes[function.__name__] = traceback.format_exc(limit=-3)


def stress(mode):
    for index in range(2):
        with torch.chameleon.device(index):
            _testing.set_stress(mode, 1)


def both_stats(key):
    return [torch_chameleon.swap_stats(index)[key] for index in range(2)]


@check
def each_is_counted_by_itself():
    assert torch.chameleon.device_count() == 2
    assert _C.first_use() is None
    tensors = [torch.ones(MIB, device=BOTH[1]) for _ in range(6)]  # 24 MiB
    assert torch.chameleon.memory_allocated(0) == 0
    assert torch.chameleon.memory_allocated(1) == 24 * MIB
    zero, one = both_stats("evictions")
    assert zero == 0
    assert one >= 4
    assert all(tensor.sum().item() == MIB for tensor in tensors)
    assert both_stats("resident_bytes")[0] == 0
    assert both_stats("peak_resident_bytes")[1] <= BUDGET


@check
def the_current_one_is_where_tensors_are_made():
    assert torch.chameleon.current_device() == 0
    assert torch.ones(1, device="chameleon").device == torch.device(BOTH[0])
    with torch.chameleon.device(1):
        assert torch.chameleon.current_device() == 1
        made = torch.ones(3, device="chameleon")
        assert made.device == torch.device(BOTH[1])
        assert (made * 2).device == torch.device(BOTH[1])
    assert torch.chameleon.current_device() == 0
    assert torch.ones_like(made).device == torch.device(BOTH[1])
    assert made.to("chameleon").device == torch.device(BOTH[0])
    with torch.device(BOTH[1]):
        assert torch.nn.Linear(2, 2).weight.device == torch.device(BOTH[1])


@check
def operands_are_on_one_device():
    a, b = (torch.ones(4, 4, device=device) for device in BOTH)
    for op in (
        lambda: a + b,
        lambda: a @ b,
        lambda: a.add_(b),
        lambda: torch.cat([a, b]),
        lambda: torch.nn.functional.linear(a, b),
    ):
        with pytest.raises(RuntimeError, match=r"two devices, .*:0 and .*:1"):
            op()
    assert (a + b.sum().cpu()).sum().item() == 16 * 17
    assert torch.equal(a.cpu(), torch.ones(4, 4))


@check
def copies_go_across():
    base = torch.randn(64, 48, dtype=torch.complex64)
    sources = [
        base.real.contiguous(),
        base.real.t().contiguous(),
        base.real.t(),
        base.real[::2, 1:],
        base,
        base.conj(),
        base.real[:, :1].expand(64, 48),
        base.real.new_empty(0, 3),
    ]
    for mode in ("never", "all"):
        stress(mode)
        for native in sources:
            there = native.to(BOTH[0])
            back = there.to(BOTH[1])
            assert back.device == torch.device(BOTH[1])
            assert torch.equal(back.cpu(), native)
            other = torch.zeros(
                native.shape[::-1], dtype=torch.complex128, device=BOTH[1]
            ).t()
            other.copy_(there, non_blocking=True)
            assert torch.equal(other.cpu(), native.to(torch.complex128))
            half = torch.zeros(native.shape, device=BOTH[1])
            half[:, ::2] = there.abs()[:, ::2]
            assert torch.equal(half[:, ::2].cpu(), native.abs()[:, ::2])
    stress("never")


@check
def copies_in_both_directions_at_once():
    results = {}

    def shuttle(index):
        here, there = BOTH[index], BOTH[1 - index]
        total = torch.zeros(MIB // 2, device=here)  # 2 MiB of 8
        for i in range(40):
            total += torch.full((MIB // 2,), float(i), device=there).to(here)
        results[index] = total.cpu()

    threads = [threading.Thread(target=shuttle, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index in range(2):
        assert torch.equal(results[index], torch.full((MIB // 2,), 780.0))


class Halves(torch.nn.Module):
    """Two halves of a network, on two devices."""

    def __init__(self, devices):
        super().__init__()
        self.devices = devices
        dropout = torch.nn.Dropout(0 if EMULATED else 0.1)  # CUDA draws others
        self.first = torch.nn.Sequential(
            torch.nn.Linear(128, 512), torch.nn.GELU(), dropout
        ).to(devices[0])
        self.second = torch.nn.Sequential(
            torch.nn.Linear(512, 256), torch.nn.GELU(), torch.nn.Linear(256, 1)
        ).to(devices[1])

    def forward(self, x):
        return self.second(self.first(x).to(self.devices[1]))


def trained(devices, steps=6):
    torch.manual_seed(3)
    model = Halves(devices)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    losses = []
    for _ in range(steps):
        x = torch.randn(700, 128).to(devices[0])
        loss = model(x).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    parameters = [p.detach().cpu() for p in model.parameters()]
    return losses, parameters, torch.get_rng_state()


def same(a, b):
    assert a[0] == b[0]
    assert all(map(torch.equal, a[1], b[1]))
    assert torch.equal(a[2], b[2])


@check
def a_model_may_span_both():
    native = trained(("cpu", "cpu"))
    for mode in ("never", "random", "all"):
        stress(mode)
        same(trained(BOTH), native)
    stress("never")
    same(trained((BOTH[1], BOTH[1])), native)


@check
def optimizers_take_both():
    def stepped(devices):
        torch.manual_seed(5)
        parameters = [
            torch.randn(300 + i, requires_grad=True, device="cpu")
            .to(devices[i % 2])
            .detach()
            .requires_grad_()
            for i in range(8)
        ]
        for kind in (torch.optim.SGD, torch.optim.Adam):
            for options in ({"foreach": True}, {"foreach": False}):
                optimizer = kind(parameters, lr=0.1, **options)
                for parameter in parameters:
                    parameter.grad = parameter.detach() * 0.5
                optimizer.step()
        torch._foreach_mul_(parameters_of(parameters), 2.0)
        return [parameter.detach().cpu() for parameter in parameters]

    def parameters_of(parameters):
        return [parameter.detach() for parameter in parameters]

    assert all(map(torch.equal, stepped(BOTH), stepped(("cpu", "cpu"))))


@check
def each_trains_in_a_thread_of_its_own():
    def losses_on(device):
        draws = torch.Generator().manual_seed(11)
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)
        )
        with torch.no_grad():
            for parameter in model.parameters():
                values = torch.randn(parameter.shape, generator=draws)
                parameter.copy_(values * 0.05)
        model = model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for _ in range(10):
            x = torch.randn(2048, 64, generator=draws).to(device)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    results = {}

    def run(device):
        torch.set_num_threads(1)
        results[device] = losses_on(device)

    threads = [threading.Thread(target=run, args=(d,)) for d in BOTH]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    native = losses_on("cpu")
    assert results == dict.fromkeys(BOTH, native)


@check
def streams_and_events():
    side = torch.chameleon.Stream(device=BOTH[1])
    default = torch.chameleon.current_stream(1)
    assert side.device == torch.device(BOTH[1])
    with torch.chameleon.stream(side):
        assert torch.chameleon.current_stream(1) == side
        x = torch.ones(1000, device=BOTH[1]) * 3
        event = torch.chameleon.Event(enable_timing=True)
        event.record(side)
    assert torch.chameleon.current_stream(1) == default
    torch.chameleon.current_stream(0).wait_event(event)  # another device's
    event.synchronize()
    assert event.query()
    assert x.sum().item() == 3000
    other = torch.chameleon.Event(enable_timing=True)
    other.record(torch.chameleon.current_stream(0))
    other.synchronize()
    with pytest.raises(RuntimeError, match="one device"):
        event.elapsed_time(other)


@check
def files_name_the_device():
    tensors = {device: torch.randn(100).to(device) for device in BOTH}
    file = io.BytesIO()
    torch.save(tensors, file)
    for where in (None, {BOTH[1]: BOTH[0]}, BOTH[1], "cpu"):
        file.seek(0)
        loaded = torch.load(file, map_location=where, weights_only=True)
        for device, tensor in tensors.items():
            assert torch.equal(loaded[device].cpu(), tensor.cpu())
            if where is None:
                assert loaded[device].device == torch.device(device)
            elif isinstance(where, dict):
                assert loaded[device].device == torch.device(BOTH[0])
            else:
                assert loaded[device].device == torch.device(where)


@check
def sparse_tensors_stay_where_they_are():
    indices = torch.tensor([[0, 3, 1], [2, 0, 1]])
    x = torch.sparse_coo_tensor(indices, torch.ones(3), (4, 4), device=BOTH[1])
    for made in (
        *(x, x + x, x.clone(), torch.zeros_like(x), x.cpu().to(BOTH[1])),
        torch.empty(2, 2, layout=torch.sparse_coo, device=BOTH[1]),
    ):
        assert made.device == torch.device(BOTH[1])
        assert made._indices().device == made._values().device == made.device
    there = x.to(BOTH[0])
    assert there._values().device == torch.device(BOTH[0])
    assert there._values().sum().item() == 3
    with pytest.raises(RuntimeError, match="same device"):
        torch.add(x, there)


@check
def a_full_device_leaves_the_other_alone():
    kept = torch.arange(1000.0, device=BOTH[0])
    with pytest.raises(torch.OutOfMemoryError, match="chameleon:1"):
        torch.ones(BUDGET, device=BOTH[1]) + 1
    assert (kept + 1).sum().item() == 500500
    assert torch.ones(10, device=BOTH[1]).sum().item() == 10


@check
def each_makes_room_of_its_own_deferred_work():
    def ones(device):
        return [torch.ones(MIB // 4, device=device) for _ in range(10)]

    with torch_chameleon.config.patch(oversubscription=4):
        updated, others = map(ones, BOTH)
        _C.evict_all(0)
        _C.evict_all(1)
        gradients = ones(BOTH[0])
        torch._foreach_add_(updated, gradients)
        del gradients
        torch._foreach_mul_(others, 2.0)
        assert _testing.deferred_op_count() == 2
        # Gradients are 10 of the 32 MiB that may be live.
        made = [updated[0] + i for i in range(20)]
    assert made[-1][-1].item() == 21
    assert others[-1][-1].item() == 2


@check
def there_is_no_third():
    with pytest.raises(RuntimeError, match="there are 2 devices"):
        torch.ones(1, device="chameleon:2")


print(json.dumps(outcomes))
