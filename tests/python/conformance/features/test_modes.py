"""Modes and subclasses above the device: they see what they see natively."""

import pytest
import torch
import torch.distributed as dist
import torch_chameleon
from support import evicting
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor import (
    DTensor,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    init_device_mesh,
)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from conformance.harness.pagers import PAGERS
from conformance.harness.suite import Suite


def net(device):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(64, 3),
    ).to(device)


def images(device):
    torch.manual_seed(1)
    return torch.randn(3, 2, 6, 6).to(device)


class Names(TorchDispatchMode):
    """Records which ops arrive, with shapes and dtypes."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        given = [
            (tuple(t.shape), t.dtype)
            for t in args
            if isinstance(t, torch.Tensor)
        ]
        self.seen.append((op.name(), given))
        return op(*args, **(kwargs or {}))


# ---- inference mode --------------------------------------------------------
def inference(device):
    """Inference tensors, views of them, and normal tensors written inside."""
    normal = torch.ones(4, device=device)
    with torch.inference_mode():
        made = torch.arange(6.0, device=device).view(2, 3)
        made.add_(1)
        view = made[:, 1:]
        normal.mul_(3)
        part = normal[1:]
        result = net(device).eval()(images(device))
        torch._foreach_add_([made, normal], 1.0)
    return (
        made,
        view,
        normal,
        part,
        result,
        [t.is_inference() for t in (made, view, normal, part, result)],
        normal._version,
    )


def inference_tensors_may_not_be_written(device):
    with torch.inference_mode():
        made = torch.ones(3, device=device)
    made.add_(1)


def inference_tensors_may_not_be_saved(device):
    with torch.inference_mode():
        made = torch.ones(3, device=device)
    weight = torch.ones(3, device=device, requires_grad=True)
    return (weight * made).sum()


def inference_tensors_may_be_cloned(device):
    with torch.inference_mode():
        made = torch.ones(3, device=device)
    weight = torch.ones(3, device=device, requires_grad=True)
    result = (weight * made.clone()).sum()
    result.backward()
    return result, weight.grad


def no_inference_inside(device):
    with torch.inference_mode(), torch.inference_mode(False):
        made = torch.ones(3, device=device, requires_grad=True)
        made.sum().backward()
    return made, made.grad, made.is_inference()


# ---- modes -----------------------------------------------------------------
def dispatch_mode(device):
    """Forward and backward of a net, op by op (see `renamed`)."""
    made, x = net(device), images(device)
    with Names() as names:
        made(x).square().sum().backward()
    return [renamed(entry) for entry in names.seen]


def renamed(entry):
    name, given = entry
    return name.replace("convolution_overrideable", "convolution"), given


def dispatch_mode_replaces(device):
    class Double(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            result = op(*args, **(kwargs or {}))
            return result * 2 if op is torch.ops.aten.sin.default else result

    x = torch.ones(3, device=device)
    with Double(), Double():
        return torch.sin(x) + torch.cos(x)


def function_mode(device):
    class Count(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.calls += 1
            return function(*args, **(kwargs or {}))

    made, x = net(device), images(device)
    with Count() as mode:
        result = made(x)
    return result, mode.calls


def default_device(device):
    with torch.device(device):
        made = torch.ones(3), nn.Linear(2, 2), torch.arange(3)
        generator = torch.Generator(device).manual_seed(3)
        drawn = torch.rand(3, generator=generator)
    torch.manual_seed(0)
    return made[0], str(made[1].weight.device), made[2], drawn


def traced(device):
    """make_fx, real and fake; jit.trace."""
    x = torch.ones(3, 3, device=device)

    def function(t):
        return (t @ t).relu().sum(0)

    graphs = [
        make_fx(function, tracing_mode=mode)(x)
        for mode in ("real", "fake", "symbolic")
    ]
    script = torch.jit.trace(function, x)
    return (
        [g(x) for g in graphs],
        [len(g.graph.nodes) for g in graphs],
        script(x),
    )


# ---- subclasses ------------------------------------------------------------
class Named(torch.Tensor):
    """A subclass that only watches."""

    log: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.log.append(getattr(function, "__name__", "?"))
        return super().__torch_function__(function, types, args, kwargs or {})


def function_subclass(device):
    Named.log.clear()
    x = torch.randn(3, 3).to(device).as_subclass(Named).requires_grad_()
    result = torch.stack([x.sin(), x @ x]).sum()
    result.backward()
    kinds = [type(t) for t in (x, result, x.grad, x[0], x.cpu(), x.detach())]
    return x, result, x.grad, kinds, list(Named.log)


class Boxed(torch.Tensor):
    """A wrapper subclass: holds a tensor and hands every op on to it."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=inner.device,
            requires_grad=inner.requires_grad,
        )

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self):
        return f"Boxed({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        def unbox(value):
            return value.inner if isinstance(value, cls) else value

        def box(value):
            return cls(value) if isinstance(value, torch.Tensor) else value

        args, kwargs = tree_map(unbox, (args, kwargs or {}))
        return tree_map(box, op(*args, **kwargs))


def wrapper_subclass(device):
    weight = Boxed(torch.randn(3, 3).to(device)).requires_grad_()
    x = Boxed(torch.randn(2, 3).to(device))
    result = torch.cat([x @ weight, x.relu()]).softmax(-1)
    result.square().sum().backward()
    result.detach().add_(1)
    return (
        result.inner,
        weight.grad.inner,
        type(weight.grad),
        str(result.device),
        x[1:].inner,
    )


def two_tensors(device):
    x = TwoTensor(torch.randn(3, 3).to(device), torch.randn(3, 3).to(device))
    x.requires_grad_()
    result = (x @ x).sin().sum()
    result.backward()
    return result.a, result.b, x.grad.a, x.grad.b


def module_of_subclasses(device):
    """An optimizer over wrapped parameters takes the loop."""
    made = nn.Linear(3, 3).to(device)
    made.weight = nn.Parameter(TwoTensor(made.weight.data, made.weight.data))
    optimizer = torch.optim.SGD(made.parameters(), 0.1)
    x = torch.randn(2, 3).to(device)
    made(TwoTensor(x, x)).sum().backward()
    optimizer.step()
    return made.weight.a, made.weight.b, made.bias


# ---- torch.compile ---------------------------------------------------------
def compiled(backend):
    def case(device):
        torch._dynamo.reset()
        made, x = net(device), images(device).requires_grad_()
        result = torch.compile(made, backend=backend)(x)
        result.square().sum().backward()
        return result, x.grad, [p.grad for p in made.parameters()]

    case.__name__ = f"compiled_{backend}"
    return case


CASES = [
    inference,
    inference_tensors_may_not_be_written,
    inference_tensors_may_not_be_saved,
    inference_tensors_may_be_cloned,
    no_inference_inside,
    dispatch_mode,
    dispatch_mode_replaces,
    function_mode,
    default_device,
    traced,
    function_subclass,
    wrapper_subclass,
    two_tensors,
    module_of_subclasses,
    compiled("eager"),
    compiled("aot_eager"),
]


@pytest.mark.parametrize("pager", PAGERS)
@pytest.mark.parametrize("case", CASES)
def test_case(case, pager):
    suite = Suite("modes")
    suite.case(case.__name__, "run", torch.float32, [case], [pager])
    suite.verify()


# ---- fake tensors ----------------------------------------------------------
def fake(device, function):
    """Shapes, strides and dtypes that a function has on fake tensors."""
    with FakeTensorMode():
        results = function(torch.device(device))
    assert all(isinstance(r, FakeTensor) for r in results)
    assert {r.device.type for r in results} == {device}
    return [(r.shape, r.stride(), r.dtype) for r in results]


def fake_training(device):
    with device:
        made = nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)
        )
        x = torch.randn(3, 2, 6, 6)
    result = made(x)
    result.square().sum().backward()
    return [result, *(p.grad for p in made.parameters())]


def fake_transformer(device):
    with device:
        made = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        x = torch.randn(3, 5, 8)
    result = made(x)
    result.sum().backward()
    return [result, *(p.grad for p in made.parameters())]


def fake_lists(device):
    parameters = [torch.ones(3, 2, device=device) for _ in range(3)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    torch.optim.AdamW(parameters).step()
    norm = nn.utils.clip_grad_norm_(parameters, 1.0)
    return [*parameters, norm]


def fake_factories(device):
    return [
        torch.empty(3, 4, device=device).t(),
        torch.randint(5, (2,), device=device),
        torch.arange(4, device=device).to(torch.float16),
        torch.zeros(2, 3, 4, 5, device=device).to(
            memory_format=torch.channels_last
        ),
    ]


@pytest.mark.parametrize(
    "function", [fake_training, fake_transformer, fake_lists, fake_factories]
)
def test_fake_tensors(function):
    before = torch_chameleon.swap_stats()["ops"]
    assert fake("chameleon", function) == fake("cpu", function)
    assert torch_chameleon.swap_stats()["ops"] == before


def test_fake_tensors_of_real_ones():
    real = torch.randn(3, 4, device="chameleon").t()
    before = torch_chameleon.swap_stats()["ops"]
    mode = FakeTensorMode()
    made = mode.from_tensor(real)
    with mode:
        result = made @ made.t()
    assert (made.stride(), made.device) == (real.stride(), real.device)
    assert (result.shape, result.device) == ((4, 4), real.device)
    assert torch_chameleon.swap_stats()["ops"] == before


def test_fake_tensors_do_not_mix_devices():
    with FakeTensorMode():
        ours, other = torch.ones(3, device="chameleon"), torch.ones(3)
        with pytest.raises(RuntimeError, match="two different devices"):
            ours + other


# ---- DTensor, one rank -----------------------------------------------------
@pytest.fixture
def process_group():
    dist.init_process_group(
        "cpu:fake,chameleon:fake", store=FakeStore(), rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


def sharded(device):
    mesh = init_device_mesh(device, (1,))
    torch.manual_seed(0)
    whole = torch.randn(4, 6).to(device)
    a = distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)
    b = DTensor.from_local(
        torch.randn(6, 4).to(device).requires_grad_(), mesh, [Replicate()]
    )
    result = (a @ b).sin()
    total = result.sum()
    total.backward()
    return (
        result.to_local(),
        total.full_tensor(),
        b.grad.to_local() if b.grad is not None else None,
        str(result.placements),
        a.redistribute(mesh, [Replicate()]).to_local(),
        str(a.device),
    )


def trained(device):
    mesh = init_device_mesh(device, (1,))
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    made = distribute_module(made, mesh)
    optimizer = torch.optim.AdamW(made.parameters(), foreach=True)
    x = DTensor.from_local(torch.randn(3, 4).to(device), mesh, [Replicate()])
    for _ in range(2):
        optimizer.zero_grad()
        loss = made(x).square().sum()
        loss.backward()
        nn.utils.clip_grad_norm_(made.parameters(), 0.5)
        optimizer.step()
    state = [(p.to_local(), p.grad.to_local()) for p in made.parameters()]
    return loss.to_local(), state


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("pager", PAGERS)
@pytest.mark.parametrize("case", [sharded, trained])
def test_distributed_tensors(case, pager):
    suite = Suite("modes")
    suite.case(f"dtensor_{case.__name__}", "run", "float32", [case], [pager])
    suite.verify()


def test_eviction_under_a_mode():
    """A mode whose own ops come between a tensor's making and its use."""

    class Evicting(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            torch.ones(64, device="chameleon").sum()
            return op(*args, **(kwargs or {}))

    x = torch.arange(12.0, device="chameleon").view(3, 4)
    with evicting("all"), Evicting():
        result = (x @ x.t()).cpu()
    y = torch.arange(12.0).view(3, 4)
    assert torch.equal(result, y @ y.t())
