"""What test_as_cuda.py runs: all checks, in one process that is as CUDA.

Prints what became of each, as JSON in the last line.
"""

import collections
import copy
import gc
import importlib.util
import io
import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sysconfig
import tempfile
import threading
import traceback
import warnings

import emulated_cuda
import pytest
import torch
import torch_chameleon
from torch import empty as imported_before
from torch import nn
from torch_chameleon import _C

warnings.simplefilter("ignore", FutureWarning)  # torch.cuda.amp is deprecated
torch.set_num_threads(1)
EMULATED = emulated_cuda.is_present()
if EMULATED:
    emulated_cuda.install()
elif "CHAMELEON_PHYSICAL_DEVICE" not in os.environ:
    torch_chameleon.config.physical_device = "cpu"
torch_chameleon.config.hbm_budget = 64 << 20
made_before = torch.device("cuda", 0)
with torch.device("cpu"):  # torch remembers which functions take a device
    used_before = torch.empty(2)
torch_chameleon.as_cuda()
torch_chameleon.as_cuda()
OURS = torch.device("chameleon", 0)
CUDA = torch.device("cuda")
outcomes = {}


def check(function):
    try:
        function()
        gc.collect()
        torch.cuda.synchronize()
        _C.check_invariants(0, 2)
        outcomes[function.__name__] = "ok"
    except Exception:
        outcomes[function.__name__] = traceback.format_exc(limit=-3)


@check
def asking_is_no_use():
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == torch.chameleon.device_count()
    assert not torch.cuda.is_initialized()
    assert _C.first_use() is None
    torch.cuda.manual_seed_all(0)
    assert _C.first_use() is None
    torch.cuda.init()
    assert torch.cuda.is_initialized()


MADE = {
    "factory": lambda: torch.randn(2, device="cuda"),
    "index": lambda: torch.zeros(2, device="cuda:0"),
    "device": lambda: torch.full((2,), 1.0, device=CUDA),
    "number": lambda: torch.ones(2, device=0),
    "tensor": lambda: torch.tensor([1, 2], device="cuda"),
    "as_tensor": lambda: torch.as_tensor([1.0], device=CUDA),
    "asarray": lambda: torch.asarray([1.0], device=CUDA),
    "like": lambda: torch.zeros_like(torch.ones(2), device="cuda"),
    "fft": lambda: torch.fft.fftfreq(4, device="cuda"),
    "window": lambda: torch.signal.windows.hann(4, device="cuda"),
    "imported before": lambda: imported_before(2, device="cuda"),
    "cuda": lambda: torch.ones(2).cuda(),
    "cuda 0": lambda: torch.ones(2).cuda(0),
    "cuda cuda:0": lambda: torch.ones(2).cuda("cuda:0"),
    "cuda device": lambda: torch.ones(2).cuda(CUDA, non_blocking=True),
    "to": lambda: torch.ones(2).to("cuda"),
    "to dtype": lambda: torch.ones(2).to(CUDA, torch.float16),
    "to keyword": lambda: torch.ones(2).to(device="cuda:0", copy=True),
    "to number": lambda: torch.ones(2).to(0),
    "new_zeros": lambda: torch.ones(2).new_zeros(3, device="cuda"),
    "new_tensor": lambda: torch.ones(2).new_tensor([1.0], device="cuda"),
    "new_empty": lambda: torch.ones(2).new_empty((3,), device=CUDA),
    "module": lambda: nn.Linear(2, 2, device="cuda").weight,
    "module.cuda": lambda: nn.Linear(2, 2).cuda().weight,
    "module.cuda 0": lambda: nn.Linear(2, 2).cuda(0).weight,
    "module.to": lambda: nn.Linear(2, 2).to(CUDA).weight,
    "module.to_empty": lambda: nn.Linear(2, 2).to_empty(device=CUDA).weight,
    "type": lambda: torch.ones(2).type(torch.cuda.FloatTensor),
    "type by name": lambda: torch.ones(2).type("torch.cuda.HalfTensor"),
    "old type": lambda: torch.cuda.FloatTensor(2, 3),
    "old type of values": lambda: torch.cuda.LongTensor([1, 2]),
    "nested": lambda: torch.nested.nested_tensor(
        [torch.ones(2)], layout=torch.jagged, device="cuda"
    ),
    "generator": lambda: torch.rand(
        2, generator=torch.Generator("cuda").manual_seed(1), device="cuda"
    ),
    "storage": lambda: torch.tensor([], device="cuda", dtype=torch.uint8).set_(
        torch.UntypedStorage(8, device="cuda")
    ),
    "packed": lambda: nn.utils.rnn.pack_sequence([torch.ones(2)]).cuda().data,
}


@check
def a_device_s_context_that_was_used_before():
    assert used_before.device.type == "cpu"
    with torch.device("cuda"):
        assert torch.empty(2).is_cuda
        assert nn.Linear(2, 2).weight.is_cuda


@check
def what_names_cuda_is_on_the_device():
    elsewhere = {}
    for name, make in MADE.items():
        tensor = make()
        if tensor.device != OURS or not tensor.is_cuda:
            elsewhere[name] = tensor.device
    assert elsewhere == {}


@check
def what_does_not_is_not():
    assert torch.ones(2).device.type == "cpu"
    assert not torch.ones(2).is_cuda
    assert nn.Linear(2, 2).weight.device.type == "cpu"
    ours = torch.ones(2, device="cuda")
    assert ours.to("cuda") is ours
    assert ours.cuda() is ours
    assert torch.zeros_like(ours, device="cpu").device.type == "cpu"


@check
def calls_that_say_nonsense_fail_as_ever():
    for wrong in ("cudaa", "cuda:x", "gpu", "\ud800"):
        with pytest.raises((RuntimeError, UnicodeEncodeError)):
            torch.ones(2, device=wrong)
    with pytest.raises(TypeError):
        torch.ones(2, devise="cuda")
    missing = "device index 7 does not exist; there is 1 device(:|$)"
    if torch.cuda.device_count() > 1:
        missing = "7 does not exist; there are . devices(:|$)"
    with pytest.raises(RuntimeError, match=missing):
        torch.ones(2, device="cuda:7")


@check
def default_devices():
    with CUDA:
        assert torch.ones(2).device == OURS
        assert torch.empty(2, device="cpu").device.type == "cpu"
    assert torch.ones(2).device.type == "cpu"
    torch.set_default_device("cuda")
    try:
        assert torch.ones(2).device == OURS == torch.get_default_device()
        assert nn.Linear(2, 2).weight.device == OURS
    finally:
        torch.set_default_device(None)


# What a default tensor type of CUDA places, and what it does not.
PLACED = {
    "ones": lambda: torch.ones(2),
    "tensor": lambda: torch.tensor([1.0]),
    "as_tensor": lambda: torch.as_tensor([1.0]),
    "of a tensor's value": lambda: torch.arange(torch.tensor(3, device="cpu")),
    "random": lambda: torch.randn(2),
    "normal": lambda: torch.normal(0.0, 1.0, (2,)),
    "fft": lambda: torch.fft.fftfreq(4),
    "module": lambda: nn.Linear(2, 2).weight,
    "sizes": lambda: torch.Tensor(2, 3),
    "no sizes": lambda: torch.Tensor(),
    "list": lambda: torch.Tensor([1, 2]),
    "no device": lambda: torch.zeros(2, device=None),
}
NOT_PLACED = {
    "device": lambda: torch.ones(2, device="cpu"),
    "tensor": lambda: torch.tensor(ON_HOST),
    "as_tensor": lambda: torch.as_tensor(ON_HOST),
    "Tensor": lambda: torch.Tensor(ON_HOST),
    "Tensor of a storage": lambda: torch.Tensor(ON_HOST.untyped_storage()),
    "like": lambda: torch.ones_like(ON_HOST),
    "new": lambda: ON_HOST.new_ones(2),
    "normal": lambda: torch.normal(ON_HOST, 1.0),
    "out": lambda: torch.ones(2, out=torch.empty(2, device="cpu")),
    "sparse": lambda: torch.sparse_coo_tensor(
        torch.zeros(1, 2, dtype=torch.int64, device="cpu"), ON_HOST, (3,)
    ),
    "FloatTensor": lambda: torch.FloatTensor([1.0]),
    "numpy": lambda: torch.from_numpy(ON_HOST.numpy()),
}
ON_HOST = torch.ones(2)


def misplaced(type_of_device):
    return {
        name: str(device)
        for makers, expected in (
            (PLACED, type_of_device),
            (NOT_PLACED, "cpu"),
        )
        for name, make in makers.items()
        if (device := make().device).type != expected
    }


@check
def default_tensor_types():
    for name in (torch.cuda.DoubleTensor, "torch.cuda.DoubleTensor"):
        try:
            torch.set_default_tensor_type(name)
            assert torch.ones(2).type() == "torch.cuda.DoubleTensor"
            assert misplaced("chameleon") == {}
            with torch.device("cpu"):
                assert torch.ones(2).device.type == "cpu"
                with CUDA:
                    assert torch.ones(2).device == OURS
            with torch.overrides.BaseTorchFunctionMode():
                assert torch.ones(2).device == OURS
            seen = []
            thread = threading.Thread(
                target=lambda seen=seen: seen.append(misplaced("chameleon"))
            )
            thread.start()
            thread.join()
            assert seen == [{}]
        finally:
            torch.set_default_tensor_type(torch.FloatTensor)
        assert misplaced("cpu") == {}
    assert torch.Tensor([1, 2]).dtype == torch.float32
    x = torch.cuda.FloatTensor([1.0])
    assert torch.cuda.FloatTensor(x).data_ptr() == x.data_ptr()
    with pytest.raises(TypeError, match="invalid type object"):
        torch.set_default_tensor_type(torch.float32)


class Marked(torch.Tensor):
    """Has no __new__."""

    def __init__(self, *args):
        self.mark = [self.device.type, *args]


class Own(torch.Tensor):
    """Places what it makes as it likes."""

    @staticmethod
    def __new__(cls, data):
        return torch.Tensor._make_subclass(cls, data)


@check
def constructed_tensors():
    on_host = torch.ones(2)
    try:
        torch.set_default_tensor_type(torch.cuda.FloatTensor)
        x = torch.ones(2)
        for made, shape in (
            (torch.Tensor([1, 2]), (2,)),
            (torch.Tensor(3, 2), (3, 2)),
            (torch.Tensor(torch.Size([2, 3])), (2, 3)),
            (torch.Tensor(data=[1, 2, 3]), (3,)),
            (torch.Tensor([1, 2], device="cuda"), (2,)),
            (torch.Tensor(), (0,)),
            (torch.Tensor(x.untyped_storage()), (2,)),
        ):
            assert made.device == OURS
            assert made.shape == shape
            assert made.dtype == torch.float32
        for view in (torch.Tensor(x), torch.Tensor(other=x)):
            assert view.data_ptr() == x.data_ptr()
        marked = Marked([1.0, 2.0])
        assert type(marked) is Marked
        assert marked.device == OURS
        assert marked.mark == ["chameleon", [1.0, 2.0]]
        assert Own(on_host).device.type == "cpu"
        assert torch.nn.Parameter(on_host).device.type == "cpu"
        assert torch.FloatTensor([1.0]).device.type == "cpu"
        for kept in (torch.Tensor([1, 2]), marked):
            for again in (pickle.loads(pickle.dumps(kept)), copy.copy(kept)):
                assert type(again) is type(kept)
                assert again.device == OURS
                assert again.tolist() == [1, 2]
        with pytest.raises(RuntimeError, match="expects device type: cuda"):
            torch.Tensor([1], device="cpu")
        with pytest.raises(TypeError, match="invalid data type 'str'"):
            torch.Tensor("text")
        with pytest.raises(torch.OutOfMemoryError, match="cuda:0"):
            torch.Tensor(1 << 34)  # nor does the host have so much
    finally:
        torch.set_default_tensor_type(torch.FloatTensor)
    assert torch.Tensor([1]).device.type == "cpu"
    assert Marked([1.0]).mark == ["cpu", [1.0]]


@check
def out_of_memory_in_cuda_s_words():
    too_much = (300 << 20) // 4
    for make, inside in (
        (lambda: torch.empty(too_much, device="cuda"), "of live tensors"),
        (
            lambda: torch.ones(40 << 20, dtype=torch.uint8, device="cuda") + 1,
            "torch_chameleon.config.hbm_budget to at least",
        ),
    ):
        with pytest.raises(torch.cuda.OutOfMemoryError) as error:
            make()
        text = str(error.value)
        assert text.startswith("CUDA out of memory. cuda:0: ")
        assert inside in text
        assert "chameleon:" not in text


@check
def part_of_the_memory():
    info = torch.cuda.mem_get_info()
    total = torch.cuda.get_device_properties(0).total_memory
    assert total == info[1]
    torch.cuda.set_per_process_memory_fraction((100 << 20) / total, 0)
    try:
        assert torch.cuda.get_per_process_memory_fraction() == 104857600 / total
        assert torch.cuda.get_device_properties(0).total_memory == total
        assert torch_chameleon.config.hbm_budget == 64 << 20
        torch.empty(60 << 20, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError, match="fraction"):
            torch.empty(120 << 20, dtype=torch.uint8, device="cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@check
def devices_compare():
    tensor = torch.ones(2, device="cuda")
    assert tensor.device == torch.device("cuda", 0) == made_before
    assert (tensor.device != made_before) is False
    assert torch.device("cuda") != torch.device("cuda", 0)  # as ever
    assert torch.device("cuda") == torch.device("chameleon")
    assert tensor.device not in (torch.device("cpu"), "cuda:0", None)
    assert {made_before: 1}[tensor.device] == 1
    assert CUDA.type == "cuda"
    assert str(made_before) == "cuda:0"
    assert isinstance(CUDA, torch.device)
    with pytest.raises(TypeError):
        sorted([CUDA, made_before])
    assert copy.deepcopy(made_before) == made_before


@check
def addresses_stay_inside():
    tensor = torch.ones(2, device="cuda")
    assert not hasattr(tensor, "__cuda_array_interface__")
    with pytest.raises(AttributeError, match="torch_chameleon.resident"):
        tensor.__cuda_array_interface__  # noqa: B018 (a property)
    kernel = torch.cuda._utils._CudaKernel(None, None)
    with pytest.raises(ValueError, match="torch_chameleon.resident"):
        kernel(args=[tensor])
    with torch_chameleon.resident(tensor) as (native,):
        if not native.is_cuda:
            return
        described = native.__cuda_array_interface__
        assert described["data"][0] == native.data_ptr()


@check
def types_have_cuda_s_names():
    tensor = torch.ones(2, device="cuda")
    assert tensor.type() == "torch.cuda.FloatTensor"
    assert tensor.half().type() == "torch.cuda.HalfTensor"
    assert tensor.cpu().type() == "torch.FloatTensor"
    assert isinstance(tensor, torch.cuda.FloatTensor)
    assert not isinstance(tensor, torch.cuda.LongTensor)
    assert not isinstance(tensor.cpu(), torch.cuda.FloatTensor)
    assert tensor.untyped_storage().is_cuda
    assert not tensor.cpu().untyped_storage().is_cuda
    assert tensor.cpu().untyped_storage().cuda().device == OURS


@check
def values_and_random_numbers_are_the_cpu_s():
    """On `cpu`, where the device draws from the CPU's generator."""
    if _C.physical_device() != "cpu":
        return
    torch.manual_seed(3)
    expected = [torch.randn(4), torch.rand(3), torch.randperm(5)]
    torch.manual_seed(3)
    found = [
        torch.randn(4, device="cuda"),
        torch.rand(3),
        torch.randperm(5, device="cuda"),
    ]
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other.cpu())


@check
def generators_and_states():
    torch.cuda.manual_seed(5)
    state = torch.cuda.get_rng_state()
    first = torch.rand(3, device="cuda")
    torch.cuda.set_rng_state(state)
    # An emulated GPU draws from the CPU's generator.
    assert EMULATED or torch.equal(first, torch.rand(3, device="cuda"))
    torch.cuda.set_rng_state(state, device="cuda:0")
    assert torch.equal(torch.cuda.get_rng_state(CUDA), state)
    states = torch.cuda.get_rng_state_all()
    with torch.random.fork_rng():
        torch.rand(3, device="cuda")
    assert torch.equal(torch.cuda.get_rng_state_all()[0], states[0])
    torch.cuda.seed()
    torch.cuda.seed_all()
    assert isinstance(torch.cuda.initial_seed(), int)
    assert torch.Generator(device=CUDA).device == torch.device("chameleon", 0)


@check
def the_module_answers():
    assert torch.cuda.current_device() == 0
    torch.cuda.set_device("cuda:0")
    torch.cuda.set_device(0)
    with torch.cuda.device("cuda:0"), torch.cuda.device(0):
        assert torch.cuda.current_device() == 0
    properties = torch.cuda.get_device_properties("cuda")
    assert properties.total_memory == torch.cuda.mem_get_info()[1]
    assert properties.name == torch.cuda.get_device_name(0)
    assert torch.cuda.is_bf16_supported()
    assert torch.cuda.get_device_capability(CUDA) == (
        properties.major,
        properties.minor,
    )
    assert isinstance(torch.cuda.get_arch_list(), list)
    assert torch.backends.cuda.is_built()
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark = False
    generator = torch.cuda.default_generators[0]
    assert isinstance(generator, torch.Generator)
    from torch.cuda import is_available

    assert is_available()
    import torch.cuda as by_name

    assert by_name is torch.cuda
    assert "memory_allocated" in dir(torch.cuda)
    with pytest.raises(AttributeError, match="nonsense"):
        torch.cuda.nonsense  # noqa: B018
    torch.cuda.of_a_program = 3
    assert torch.cuda.of_a_program == 3


@check
def memory_figures():
    before = torch.cuda.memory_allocated()
    tensor = torch.ones(1 << 18, device="cuda")
    for owner in (torch.cuda, torch.cuda.memory):
        assert owner.memory_allocated() == before + tensor.nbytes
        assert owner.max_memory_allocated("cuda:0") >= before + tensor.nbytes
        assert owner.memory_reserved(CUDA) >= tensor.nbytes
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.empty_cache()
    assert "allocated_bytes.all.peak" in torch.cuda.memory_stats()
    assert "memory summary" in torch.cuda.memory_summary()
    assert issubclass(torch.cuda.OutOfMemoryError, RuntimeError)
    torch.cuda.memory._record_memory_history()
    torch.cuda.memory._record_memory_history(enabled=None)


@check
def streams_and_events():
    begin, end = torch.cuda.Event(True), torch.cuda.Event(enable_timing=True)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    begin.record()
    with torch.cuda.stream(stream):
        tensor = torch.ones(3, device="cuda") + 1
        end.record()
    torch.cuda.current_stream().wait_stream(stream)
    tensor.record_stream(torch.cuda.current_stream())
    torch.cuda.synchronize("cuda:0")
    assert begin.elapsed_time(end) >= 0
    assert end.query()
    assert isinstance(stream, torch.cuda.Stream)
    assert isinstance(torch.cuda.current_stream(), torch.cuda.Stream)
    assert isinstance(end, torch.cuda.Event)
    assert torch.cuda.default_stream() == torch.cuda.current_stream()
    assert torch.Stream("cuda").device == OURS
    assert torch.Event("cuda").device == torch.device("chameleon")
    with pytest.raises(RuntimeError, match="run without the graph"):
        torch.cuda.CUDAGraph()


@check
def accelerator():
    torch.accelerator.set_device_index("cuda:0")
    torch.accelerator.synchronize(CUDA)
    assert torch.accelerator.current_stream("cuda").device == OURS
    assert torch.accelerator.memory_allocated("cuda:0") >= 0
    with pytest.raises(ValueError, match="doesn't match"):
        torch.accelerator.synchronize("cpu")
    assert torch.accelerator.current_accelerator() == CUDA
    assert torch.get_device_module("cuda").memory_allocated() >= 0


def product():
    a = torch.ones(2, 2, device="cuda")
    return (a @ a).dtype


@check
def autocast():
    assert torch.amp.is_autocast_available("cuda")
    with torch.autocast("cuda"):
        assert product() == torch.float16
        assert torch.is_autocast_enabled()
        assert torch.is_autocast_enabled("cuda")
        assert not torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_gpu_dtype() == torch.float16
        with torch.autocast(device_type="cuda", enabled=False):
            assert product() == torch.float32
    assert not torch.is_autocast_enabled()
    with torch.autocast(CUDA.type, dtype=torch.bfloat16):
        assert product() == torch.bfloat16
        assert torch.get_autocast_dtype("cuda") == torch.bfloat16
    with torch.cuda.amp.autocast():
        assert product() == torch.float16
    torch.set_autocast_enabled(True)
    assert torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", False)
    assert not torch.is_autocast_enabled()

    @torch.autocast("cuda")
    def decorated():
        return product()

    assert decorated() == torch.float16


@check
def functions_of_autograd_in_autocast():
    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx, x):
            assert not torch.is_autocast_enabled("cuda")
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, gradient):
            return gradient * 2

    x = torch.ones(2, device="cuda", dtype=torch.float16, requires_grad=True)
    with torch.autocast("cuda"):
        y = Double.apply(x)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert x.grad.tolist() == [2, 2]


@check
def gradient_scalers():
    for scaler in (
        torch.amp.GradScaler("cuda", init_scale=1024.0),
        torch.cuda.amp.GradScaler(init_scale=1024.0),
        torch.amp.GradScaler(CUDA.type, init_scale=1024.0),
    ):
        assert scaler.is_enabled()
        model = nn.Linear(2, 2).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        with torch.autocast("cuda"):
            loss = model(torch.ones(1, 2, device="cuda")).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 1024.0
        scaler.load_state_dict(scaler.state_dict())


@check
def files_are_cuda_s():
    model = nn.Linear(2, 2).cuda()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "step": torch.ones(1)}, file)
    assert b"cuda:0" in file.getvalue()
    assert b"chameleon" not in file.getvalue()

    def loaded(map_location, **options):
        file.seek(0)
        found = torch.load(file, map_location=map_location, **options)
        assert torch.equal(found["model"]["weight"].cpu(), model.weight.cpu())
        return found["model"]["weight"].device, found["step"].device

    host = torch.device("cpu")
    assert loaded(None) == (OURS, host)
    assert loaded({"cuda:0": "cpu"}) == (host, host)
    assert loaded({"cuda:0": "cuda:0"}) == (OURS, host)
    assert loaded("cpu") == (host, host)
    for there in ("cuda", "cuda:0", CUDA, made_before, lambda s, _: s.cuda(0)):
        weights_only = not callable(there)
        assert loaded(there, weights_only=weights_only) == (OURS, OURS)
    assert loaded(lambda storage, _: storage, weights_only=False) == (
        host,
        host,
    )


@check
def pinned_batches():
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    for device in ("", "cuda"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loader = torch.utils.data.DataLoader(
                data,
                batch_size=4,
                num_workers=1,
                pin_memory=True,
                pin_memory_device=device,
            )
            batches = [batch for (batch,) in loader]
        assert all(batch.is_pinned() for batch in batches)
        there = [batch.cuda(non_blocking=True) for batch in batches]
        assert torch.cat(there).tolist() == list(range(8))
    assert torch.ones(2).pin_memory("cuda").is_pinned("cuda")


@check
def data_parallel_over_one_device():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    x = torch.ones(4, 3)
    expected = model(x).detach()
    parallel = nn.DataParallel(model).cuda()
    for batch in (x, x.cuda()):
        assert torch.equal(parallel(batch).cpu(), expected)
    parallel(x.cuda()).sum().backward()
    assert model.weight.grad.device == OURS
    assert list(parallel.state_dict()) == ["module.weight", "module.bias"]


@check
def functions_of_data_parallel():
    from torch.nn import parallel

    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).cuda()
    x = torch.ones(4, 3, requires_grad=True)
    replicas = parallel.replicate(model, [0])
    ((batch,),) = parallel.scatter((x,), [0])
    assert batch.device == OURS
    outputs = parallel.parallel_apply(replicas, [(batch,)])
    found = parallel.gather(outputs, 0)
    assert torch.equal(found, model(x.cuda()))
    found.sum().backward()
    assert model[0].weight.grad.device == OURS
    assert x.grad.shape == x.shape
    assert parallel.gather(outputs, "cpu").device.type == "cpu"
    two = parallel.replicate(model, ["cuda:0", CUDA], detach=True)
    assert torch.equal(two[1][0].weight, model[0].weight)
    assert two[1][0].weight.data_ptr() != model[0].weight.data_ptr()


@check
def functions_of_comm():
    from torch.nn.parallel import comm

    x = torch.arange(6.0).view(3, 2)
    (copy_of_x,) = comm.broadcast(x, ["cuda:0"])
    assert copy_of_x.device == OURS
    assert comm.broadcast(copy_of_x, [0])[0] is copy_of_x
    out = torch.zeros(3, 2, device="cuda")
    assert comm.broadcast(x, out=[out])[0] is out
    assert torch.equal(out.cpu(), x)
    assert comm.broadcast_coalesced([out], [0])[0][0] is out
    assert comm.reduce_add([out], 0) is out
    assert torch.equal(comm.reduce_add([out, out]).cpu(), 2 * x)
    (total,) = comm.reduce_add_coalesced([[out], [out]])
    assert torch.equal(total.cpu(), 2 * x)
    first, second = comm.scatter(x, [0, 0], chunk_sizes=[1, 2])
    assert (first.device, second.shape) == (OURS, (2, 2))
    assert comm.scatter(x, ["cuda:0"], dim=1)[0].tolist() == x.tolist()
    parts = comm.scatter(x, out=[torch.zeros_like(first), second * 0])
    assert parts[1].tolist() == second.tolist()
    assert torch.equal(comm.gather(parts).cpu(), x)
    assert torch.equal(comm.gather(parts, destination="cpu"), x)
    assert comm.gather(parts, out=out.zero_()) is out
    assert torch.equal(out.cpu(), x)
    z = torch.complex(x, x)
    assert comm.broadcast(z, [0])[0].shape == (3, 2, 2)  # as on CUDA
    with pytest.raises(RuntimeError, match="index 0 is on cpu"):
        comm.gather([x])
    with pytest.raises(RuntimeError, match=r"all tensors must be on devices"):
        comm.broadcast_coalesced([x], [0])
    with pytest.raises(RuntimeError, match="must have the shape"):
        comm.broadcast(x, out=[out[0]])


@check
def channels_last():
    model = nn.Conv2d(3, 4, 3).to("cuda", memory_format=torch.channels_last)
    x = torch.rand(2, 3, 8, 8).to(memory_format=torch.channels_last).cuda()
    assert x.is_contiguous(memory_format=torch.channels_last)
    if not EMULATED:  # it has no cuDNN
        assert model(x).is_contiguous(memory_format=torch.channels_last)


@torch.jit.script
def scripted_before(x):
    return torch.zeros(2, device=x.device) + x


@check
def torchscript():
    @torch.jit.script
    def scripted(x, n: int):
        y = torch.ones(n, device=x.device).to(x.device)
        return y + torch.zeros_like(x)

    x = torch.ones(2, device="cuda")
    assert scripted(x, 2).tolist() == [1, 1]
    assert scripted_before(x).tolist() == [1, 1]
    module = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU())).cuda()
    assert module(x).device == OURS
    file = io.BytesIO()
    torch.jit.save(module, file)
    file.seek(0)
    assert torch.jit.load(file, map_location="cuda")(x).device == OURS
    file.seek(0)
    assert torch.jit.load(file)(x).device == OURS


class Made(nn.Module):
    def forward(self, x):
        return x + torch.zeros(x.size(0), device="cuda")


@check
def symbolic_traces():
    traced = torch.fx.symbolic_trace(Made())
    assert "torch.zeros" in traced.code
    assert traced(torch.ones(2, device="cuda")).tolist() == [1, 1]


@check
def function_modes_see_torch_s_functions():
    seen = collections.Counter()

    class Seen(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen[func] += 1
            return func(*args, **(kwargs or {}))

    with Seen():
        torch.ones(2, device="cuda").to("cuda")
    assert seen[torch.ones] == 1
    assert seen[torch.Tensor.to] == 1


@check
def profiles():
    activity = torch.profiler.ProfilerActivity
    both = [activity.CPU, activity.CUDA]
    with torch.profiler.profile(activities=both) as profiled:
        torch.ones(2, device="cuda") + 1
        torch.cuda.synchronize()
    assert any("aten::add" in e.key for e in profiled.key_averages())


@check
def threads():
    """The exchange keeps nothing between calls."""
    wrong = []

    def make(seed):
        for index in range(200):
            device = "cuda" if (index + seed) % 2 else "cpu"
            if torch.empty(1, device=device).is_cuda != (device == "cuda"):
                wrong.append(index)

    threads = [threading.Thread(target=make, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@check
def arguments_are_released():
    import sys

    device = torch.device("cuda", 0)
    named = {"device": device}
    before = sys.getrefcount(device), sys.getrefcount(OURS)
    for _ in range(100):
        torch.empty(1, **named)
        torch.ones(1).to(device)
    assert (sys.getrefcount(device), sys.getrefcount(OURS)) == before


EXTENSION = """
#include <Python.h>

static PyObject* wants_cuda(PyObject* self, PyObject* args) {
  PyErr_SetString(PyExc_RuntimeError, "x must be a CUDA tensor");
  return NULL;
}

static PyObject* wants_more(PyObject* self, PyObject* args) {
  PyErr_SetString(PyExc_ValueError, "x is too short");
  return NULL;
}

static PyMethodDef functions[] = {
    {"wants_cuda", wants_cuda, METH_VARARGS, NULL},
    {"wants_more", wants_more, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "wants", NULL, -1, functions};

PyMODINIT_FUNC PyInit_wants(void) { return PyModule_Create(&module); }
"""


def built(folder, *options):
    source = pathlib.Path(folder, "wants.c")
    source.write_text(EXTENSION)
    library = source.with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))
    include = sysconfig.get_paths()["include"]
    subprocess.run(
        [
            "cc",
            "-shared",
            "-fPIC",
            "-I",
            include,
            "-o",
            library,
            source,
            *options,
        ],
        check=True,
    )
    spec = importlib.util.spec_from_file_location("wants", library)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@check
def extensions_name_resident():
    if shutil.which("cc") is None:
        return
    libraries = pathlib.Path(torch.__file__).parent / "lib"
    linked = ["-Wl,--no-as-needed", "-L", str(libraries), "-lc10"]
    ours = torch.ones(2, device="cuda")
    with tempfile.TemporaryDirectory() as folder:
        module = built(folder, *linked)
        for given in ((ours,), ([ours],)):
            with pytest.raises(
                RuntimeError,
                match=r"must be a CUDA tensor\nwants.wants_cuda needs an "
                r"address.*torch_chameleon\.resident",
            ):
                module.wants_cuda(*given)
        with pytest.raises(RuntimeError, match="CUDA tensor$"):
            module.wants_cuda(torch.ones(2))
        with pytest.raises(ValueError, match="too short$"):
            module.wants_more(ours)
    with tempfile.TemporaryDirectory() as folder:
        module = built(folder)  # it knows nothing of torch
        with pytest.raises(RuntimeError, match="CUDA tensor$"):
            module.wants_cuda(ours)


print(json.dumps(outcomes))
