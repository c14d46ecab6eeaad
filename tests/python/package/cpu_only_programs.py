"""Programs that use the CPU alone, each as one line of what it sees.

`python cpu_only_programs.py [import]`: with "import", torch_chameleon is there.
"""

import copy
import io
import sys
import warnings

warnings.simplefilter("ignore")

import torch  # noqa: E402

if sys.argv[1:] == ["import"]:
    import torch_chameleon  # noqa: F401

import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402


def data_parallel():
    wrapped = nn.DataParallel(nn.Linear(2, 2), device_ids=[0, 1])
    return wrapped.device_ids, wrapped(torch.ones(1, 2))


def data_parallel_function():
    return nn.parallel.data_parallel(nn.Linear(2, 2), torch.ones(1, 2))


def loaded(**options):
    loader = DataLoader(torch.arange(6.0), batch_size=2, **options)
    return [(batch.tolist(), batch.is_pinned()) for batch in loader]


def data_loader():
    return loaded(), loaded(num_workers=1, multiprocessing_context="fork")


def pinned_data_loader():
    return loaded(pin_memory=True)


def pinned_memory():
    return torch.ones(2).pin_memory().is_pinned()


def saved_on_cpu():
    x = torch.ones(2, requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        y = (x * x).sum()
    y.backward()
    return x.grad


def activities():
    return sorted(str(kind) for kind in torch.profiler.supported_activities())


def profile():
    with torch.profiler.profile() as found:
        torch.ones(2) + 1
    table = found.key_averages().table().splitlines()
    return [row.key for row in found.key_averages()], table[1].split()


def checkpoints():
    found = []
    for use_reentrant in (True, False):
        net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
        x = torch.ones(2, 3, requires_grad=True)
        y = checkpoint(net, x, use_reentrant=use_reentrant)
        y.sum().backward()
        found += [x.grad, y]
    return found


def random_numbers():
    with torch.random.fork_rng():
        inside = torch.rand(2)
    state = torch.get_rng_state()
    drawn = torch.rand(2)
    torch.set_rng_state(state)
    return inside, drawn, torch.rand(2), torch.initial_seed()


def stepped(kind, **options):
    layer = nn.Linear(2, 2)
    optimizer = kind(layer.parameters(), lr=0.1, **options)
    for _ in range(3):
        optimizer.zero_grad()
        layer(torch.ones(1, 2)).square().sum().backward()
        optimizer.step()
    return layer.weight


def optimizers():
    names = ("SGD", "AdamW", "RMSprop", "ASGD", "NAdam", "RAdam", "Adagrad")
    found = [stepped(getattr(torch.optim, name)) for name in names]
    return [*found, stepped(torch.optim.AdamW, fused=True)]


def capturable_optimizer():
    return stepped(torch.optim.Adam, capturable=True)


def mixed_precision():
    with torch.autocast("cpu"):
        lower = nn.Linear(2, 2)(torch.ones(1, 2))
    scaler = torch.amp.GradScaler()
    return lower, scaler.is_enabled(), torch.amp.GradScaler("cpu").is_enabled()


def files():
    file = io.BytesIO()
    torch.save({"x": torch.ones(2), "net": nn.Linear(1, 1).state_dict()}, file)
    size = len(file.getvalue())
    file.seek(0)
    return size, torch.load(file)["x"].device


def graphs():
    layer, x = nn.Linear(2, 2), torch.ones(1, 2)
    return (
        torch.jit.script(layer)(x),
        str(torch.jit.trace(nn.Conv2d(1, 1, 1), torch.ones(1, 1, 2, 2)).graph),
        str(torch.export.export(layer, (x,)).graph),
        torch.fx.symbolic_trace(layer).code,
        torch.compile(layer, backend="aot_eager")(x),
    )


def transforms():
    def energy(x):
        return (x**2).sum()

    found = torch.func.vmap(torch.func.grad(energy))(torch.ones(2, 2))
    double = torch.ones(2, dtype=torch.double, requires_grad=True)
    return found, torch.autograd.gradcheck(torch.sin, double)


def attention():
    x = torch.rand(1, 1, 2, 4)
    return (
        F.scaled_dot_product_attention(x, x, x),
        nn.MultiheadAttention(4, 2).eval()(x[0], x[0], x[0])[0],
        nn.TransformerEncoderLayer(4, 2, 8).eval()(x[0]),
    )


def recurrent():
    return [kind(2, 2)(torch.ones(2, 1, 2))[0] for kind in (nn.LSTM, nn.GRU)]


def layouts():
    dense = torch.eye(2)
    ragged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    return (
        str(dense.to_sparse()),
        str(dense.to_sparse_csr()),
        torch.quantize_per_tensor(dense, 0.1, 0, torch.quint8).dequantize(),
        ragged.to_padded_tensor(0),
    )


def devices():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = (torch.empty(2, device="cuda") + 1).device
    torch.set_default_device("cpu")
    made = torch.ones(1).device
    torch.set_default_device(None)
    meta = nn.Linear(2, 2, device="meta").weight.device
    return (
        fake,
        made,
        meta,
        torch.cuda.is_available(),
        torch.ones(2).is_pinned(),
    )


def other_libraries():
    return torch.from_dlpack(torch.ones(2)), torch.ones(2).numpy().tolist()


def processes():
    tasks = mp.get_context("fork").SimpleQueue()
    tasks.put(torch.ones(2))
    layer = nn.Linear(1, 1).share_memory()
    return tasks.get(), layer.weight.is_shared()


def printed():
    return repr(torch.ones(0, 3)), repr(torch.arange(30.0))


def conversions():
    layer = nn.Linear(2, 2)
    weight = layer.weight
    layer.to(torch.float64).to("cpu")
    layer.weight.data = torch.zeros(3)
    lazy = nn.LazyLinear(2)
    lazy(torch.ones(1, 3))
    return weight is layer.weight, layer.weight, lazy.weight.shape


def lazy_copies():
    return torch._C._is_cow_tensor(torch._lazy_clone(torch.ones(2)))


def copies():
    layer = copy.deepcopy(nn.Linear(2, 2))
    averaged = torch.optim.swa_utils.AveragedModel(layer)
    return averaged.module.weight.equal(layer.weight)


def safetensors():
    import safetensors.torch as library

    return library.load(library.save({"x": torch.ones(2)}))


def distributed():
    dist.init_process_group(
        "gloo", store=dist.HashStore(), rank=0, world_size=1
    )
    try:
        x = torch.ones(2)
        dist.all_reduce(x)
        wrapped = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
        wrapped(torch.ones(1, 2)).sum().backward()
        return x, wrapped.module.weight.grad
    finally:
        dist.destroy_process_group()


def fully_sharded():
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group(
        "gloo", store=dist.HashStore(), rank=0, world_size=1
    )
    try:
        layer = fully_shard(nn.Linear(2, 2))
        return layer.weight.device
    finally:
        dist.destroy_process_group()


def default_backend():
    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()


PROGRAMS = [
    attention,
    activities,
    capturable_optimizer,
    checkpoints,
    conversions,
    copies,
    data_loader,
    data_parallel,
    data_parallel_function,
    default_backend,
    devices,
    distributed,
    files,
    fully_sharded,
    graphs,
    layouts,
    lazy_copies,
    mixed_precision,
    optimizers,
    other_libraries,
    pinned_data_loader,
    pinned_memory,
    printed,
    processes,
    profile,
    random_numbers,
    recurrent,
    safetensors,
    saved_on_cpu,
    transforms,
]


def main():
    """Prints a line a program: its name and what it sees."""
    torch.set_num_threads(1)
    torch.set_printoptions(precision=10)
    for program in PROGRAMS:
        torch.manual_seed(0)
        try:
            seen = program()
        except Exception as error:
            seen = error
        print(program.__name__, repr(seen).replace("\n", " "), flush=True)


if __name__ == "__main__":
    main()
