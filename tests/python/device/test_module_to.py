"""nn.Module.to keeps Parameter objects and is all-or-nothing."""

import copy
import gc
import itertools
import weakref

import pytest
import torch
import torch_chameleon
from support import MIB, same_bits
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary
from torch_chameleon._patches import module_to


def bits(module):
    """All values of a module, by name."""
    tensors = {
        **dict(module.named_parameters()),
        **dict(module.named_buffers()),
    }
    return {name: t.detach().cpu().clone() for name, t in tensors.items()}


def unchanged(module, before):
    now = bits(module)
    return now.keys() == before.keys() and all(
        same_bits(now[name], before[name]) for name in now
    )


def devices(module):
    tensors = [*module.parameters(), *module.buffers()]
    return {t.device.type for t in tensors}


class Tied(nn.Module):
    """Tied weights, a buffer, a frozen parameter."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)

    def forward(self, tokens):
        return self.head(self.norm(self.embed(tokens)))


MOVES = {
    "to": lambda m: m.to("chameleon"),
    "to_device": lambda m: m.to(torch.device("chameleon:0")),
    "to_tensor": lambda m: m.to(torch.ones(1, device="chameleon")),
    "to_keyword": lambda m: m.to(device="chameleon", non_blocking=True),
    "chameleon": lambda m: m.chameleon(),
    "chameleon_index": lambda m: m.chameleon(0),
}


@pytest.mark.parametrize("move", MOVES)
def test_parameter_objects_stay(move):
    model = Tied()
    before = bits(model)
    objects = {name: id(p) for name, p in model.named_parameters()}
    assert MOVES[move](model) is model
    assert devices(model) == {"chameleon"}
    assert {name: id(p) for name, p in model.named_parameters()} == objects
    assert model.head.weight is model.embed.weight
    assert not model.frozen.requires_grad
    assert unchanged(model, before)
    model.cpu()
    assert devices(model) == {"cpu"}
    assert {name: id(p) for name, p in model.named_parameters()} == objects
    assert model.head.weight is model.embed.weight
    assert unchanged(model, before)


def test_optimizer_made_before_the_move_keeps_working():
    torch.manual_seed(0)
    model = Tied()
    native = copy.deepcopy(model)
    tokens = torch.arange(10)
    for device, net in (("cpu", native), ("chameleon", model)):
        optimizer = torch.optim.SGD(net.parameters(), 0.1, foreach=True)
        net.to(device)
        for _ in range(2):
            optimizer.zero_grad()
            net(tokens.to(device)).square().mean().backward()
            optimizer.step()
    assert unchanged(model, bits(native))


def test_gradient_object_moves_along():
    model = Tied()
    model(torch.arange(10)).sum().backward()
    gradient = model.embed.weight.grad
    value = gradient.clone()
    model.to("chameleon")
    assert model.embed.weight.grad is gradient
    assert gradient.is_chameleon
    assert same_bits(gradient, value)
    model(torch.arange(10, device="chameleon")).sum().backward()
    assert model.embed.weight.grad is gradient  # accumulated in place
    model.cpu()
    assert model.embed.weight.grad is gradient
    assert gradient.device.type == "cpu"


def test_weak_references_survive():
    model = Tied()
    weak = [weakref.ref(p) for p in model.parameters()]
    by_parameter = WeakTensorKeyDictionary()
    by_parameter[model.frozen] = "frozen"
    model.to("chameleon")
    gc.collect()
    alive = [reference() for reference in weak]
    assert all(a is p for a, p in zip(alive, model.parameters(), strict=True))
    assert by_parameter[model.frozen] == "frozen"


def test_live_graph():
    """A graph from before the move does not stand in its way."""
    model = nn.Linear(3, 3)
    loss = model(torch.ones(1, 3)).sum()
    model.to("chameleon")
    model(torch.ones(1, 3, device="chameleon")).sum().backward()
    assert model.weight.grad.is_chameleon
    assert model.weight.grad.sum().item() == 9
    model.zero_grad()
    model.cpu()
    model(torch.ones(1, 3)).sum().backward()
    assert model.weight.grad.sum().item() == 9
    del loss


def test_hooks_stay():
    model = nn.Linear(3, 3)
    calls = []
    model.weight.register_hook(lambda grad: calls.append(grad.device.type))
    model.weight.register_post_accumulate_grad_hook(
        lambda p: calls.append(("post", p.grad.device.type))
    )
    model.register_forward_hook(lambda *_: calls.append("forward"))
    model(torch.ones(1, 3)).sum().backward()
    model.to("chameleon")
    model(torch.ones(1, 3, device="chameleon")).sum().backward()
    model.cpu()
    model(torch.ones(1, 3)).sum().backward()
    assert calls == [
        *("forward", "cpu", ("post", "cpu")),
        *("forward", "chameleon", ("post", "chameleon")),
        *("forward", "cpu", ("post", "cpu")),
    ]


def test_optimizer_step_in_the_backward():
    """Post-accumulate hooks that step and free, across a move."""
    model = nn.Linear(3, 3)
    optimizers = {p: torch.optim.SGD([p], 1.0) for p in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        parameter.grad = None

    handles = [
        parameter.register_post_accumulate_grad_hook(step)
        for parameter in model.parameters()
    ]
    model.to("chameleon")
    before = model.bias.detach().clone()
    model(torch.ones(1, 3, device="chameleon")).sum().backward()
    assert same_bits(model.bias, before - 1)
    assert model.bias.grad is None
    for handle in handles:  # a cycle through C++, which nothing collects
        handle.remove()


def test_attributes_and_subclasses_of_parameters_stay():
    class Special(nn.Parameter):
        pass

    model = nn.Module()
    model.weight = Special(torch.ones(2))
    model.weight.note = "kept"
    model.to("chameleon")
    assert type(model.weight) is Special
    assert model.weight.note == "kept"
    assert model.weight.is_chameleon


def test_dtype_with_device():
    model = Tied().to("chameleon", torch.float64)
    assert model.head.weight.dtype == torch.float64
    assert model.head.weight is model.embed.weight
    assert model.norm.num_batches_tracked.dtype == torch.int64
    weight = model.head.weight
    model.float()
    assert model.head.weight is weight
    assert weight.dtype == torch.float32


def test_memory_format():
    model = nn.Conv2d(3, 4, 2).to(
        device="chameleon", memory_format=torch.channels_last
    )
    assert model.weight.is_contiguous(memory_format=torch.channels_last)


def test_recurrent_layer():
    torch.manual_seed(0)
    model = nn.LSTM(3, 4, num_layers=2)
    x = torch.randn(5, 2, 3)
    expected, _ = model(x)
    weights = [id(w) for w in model.all_weights[1]]
    model.to("chameleon")
    assert [id(w) for w in model.all_weights[1]] == weights
    assert all(w.is_chameleon for w in model._flat_weights)
    assert same_bits(model(x.chameleon())[0], expected)


def test_lazy_module():
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d())
    model.to("chameleon")
    weight = model[0].weight
    assert weight.device.type == "chameleon"
    out = model(torch.randn(3, 2, device="chameleon"))
    assert out.is_chameleon
    assert model[0].weight is weight
    assert weight.shape == (4, 2)


def test_meta_module():
    with torch.device("meta"):
        model = Tied()
    with pytest.raises(NotImplementedError, match="to_empty"):
        model.to("chameleon")
    assert devices(model) == {"meta"}
    weight = model.embed.weight
    model.to_empty(device="chameleon")
    assert devices(model) == {"chameleon"}
    assert model.embed.weight is weight
    assert model.head.weight is weight


def test_tied_and_foreign_buffers():
    shared = torch.arange(4.0)
    model = nn.Sequential(nn.Module(), nn.Module())
    for part in model:
        part.register_buffer("table", shared)
    model.to("chameleon")
    assert model[0].table is model[1].table
    assert model[0].table.is_chameleon
    assert shared.device.type == "cpu"  # another model may hold it


def test_a_module_that_is_there_twice():
    part = nn.BatchNorm1d(3)
    model = nn.Sequential(part, part).to_empty(device="chameleon")
    assert model[0] is model[1]
    assert devices(model) == {"chameleon"}


def test_views_of_one_storage_stay_views():
    flat = torch.arange(12.0)
    model = nn.Module()
    model.first = nn.Parameter(flat[:6].view(2, 3))
    model.second = nn.Parameter(flat[6:].view(3, 2).t())
    model.register_buffer("whole", flat)
    before = bits(model)
    for device in ("chameleon", "cpu"):
        model.to(device)
        assert unchanged(model, before)
        storages = {
            t.untyped_storage()._cdata for t in model.state_dict().values()
        }
        assert len(storages) == 1
        assert model.second.stride() == (1, 2)
    with torch.no_grad():
        model.to("chameleon").first.fill_(7)
    assert model.whole[:6].eq(7).all()


def test_each_its_own_storage_where_the_dtype_changes():
    flat = torch.arange(4.0)
    model = nn.Module()
    model.first = nn.Parameter(flat[:2])
    model.second = nn.Parameter(flat[2:])
    model.to("chameleon", torch.float16)
    assert model.second.tolist() == [2, 3]
    assert model.first.storage_offset() == model.second.storage_offset() == 0


# ---- failures


class Fails(nn.Module):
    """Refuses to be converted, after its children were."""

    def __init__(self, *children):
        super().__init__()
        self.children_first = nn.ModuleList(children)

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        raise MemoryError("no more room")


CONVERSIONS = {
    "to": ("cpu", lambda m: m.to("chameleon")),
    "back": ("chameleon", lambda m: m.cpu()),
    "dtype": ("cpu", lambda m: m.to("chameleon", torch.bfloat16)),
    "dtype_only": ("chameleon", lambda m: m.half()),
    "to_empty": ("cpu", lambda m: m.to_empty(device="chameleon")),
    "empty_back": ("chameleon", lambda m: m.to_empty(device="cpu")),
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_failure_in_the_middle_undoes_everything(name):
    device, convert = CONVERSIONS[name]
    model = Tied()
    model(torch.arange(10)).sum().backward()
    model.to(device)
    tree = nn.Sequential(nn.Linear(2, 2).to(device), Fails(model))
    before, gradient = bits(tree), model.embed.weight.grad
    gradient_value = gradient.clone()
    buffers = [id(b) for b in tree.buffers()]
    dtypes = [t.dtype for t in tree.state_dict().values()]
    with pytest.raises(MemoryError, match="no more room"):
        convert(tree)
    assert devices(tree) == {device}
    assert [t.dtype for t in tree.state_dict().values()] == dtypes
    assert unchanged(tree, before)
    assert model.head.weight is model.embed.weight
    assert model.embed.weight.grad is gradient
    assert gradient.device.type == device
    assert same_bits(gradient, gradient_value)
    del buffers


def test_failure_gives_back_aliased_storage():
    """What looks at a parameter's storage from outside goes on doing so."""
    outside = torch.arange(6.0)
    model = nn.Module()
    model.weight = nn.Parameter(outside.view(2, 3))
    with pytest.raises(MemoryError):
        Fails(model).to("chameleon")
    with torch.no_grad():
        model.weight.fill_(1)
    assert outside.eq(1).all()


def test_failure_keeps_views_of_one_storage():
    flat = torch.arange(4.0)
    model = nn.Module()
    model.first = nn.Parameter(flat[:2])
    model.second = nn.Parameter(flat[2:])
    del flat
    with pytest.raises(MemoryError):
        Fails(model).to("chameleon")
    assert model.first.tolist() + model.second.tolist() == [0, 1, 2, 3]
    one, other = model.first.untyped_storage(), model.second.untyped_storage()
    assert one._cdata == other._cdata
    assert one.device.type == "cpu"


def test_failure_in_a_nested_call_undoes_that_call_only():
    class Catches(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Fails(nn.Linear(2, 2))
            self.weight = nn.Parameter(torch.ones(1))

        def _apply(self, fn, recurse=True):
            with pytest.raises(MemoryError):
                self.inner.to("chameleon")
            return super()._apply(fn, recurse=False)

    model = Catches().to("chameleon")
    assert model.weight.is_chameleon
    assert devices(model.inner) == {"cpu"}


def test_no_room_moves_nothing():
    """Out of memory half-way: the limit holds less than the model."""
    model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(8)))
    before = bits(model)
    live = torch.chameleon.memory_allocated()
    small = torch_chameleon.config.patch(hbm_budget=MIB, oversubscription=1.0)
    with small, pytest.raises(torch.OutOfMemoryError, match="oversubscription"):
        model.to("chameleon")
    assert devices(model) == {"cpu"}
    assert unchanged(model, before)
    assert torch.chameleon.memory_allocated() == live


def test_no_second_copy_of_the_model():
    """At no moment is more than one tensor in both places."""
    size = 1 << 18
    model = nn.ParameterList(torch.ones(size // 4) for _ in range(8))
    model.to("chameleon")
    torch.chameleon.reset_peak_memory_stats()
    live = []
    real = torch.empty

    def convert(tensor):
        live.append(torch.chameleon.memory_allocated())
        return real(tensor.shape).copy_(tensor)

    conversion = module_to._Conversion(model, keep_views=True)
    with conversion.part(loses_values=False):
        conversion.apply(model, convert, recurse=True)
    steps = [a - b for a, b in itertools.pairwise(live)]
    assert steps == [size] * 7


# ---- what is torch's own stays torch's own


def test_other_devices_are_untouched(monkeypatch):
    def forbidden(*_):
        raise AssertionError

    monkeypatch.setattr(module_to._Conversion, "apply", forbidden)
    model = nn.Linear(2, 2).to("cpu").double().half().bfloat16().float()
    with torch.device("meta"):
        nn.Linear(2, 2).to_empty(device="cpu")
    model.share_memory()
    with pytest.raises(RuntimeError, match="device"):
        model.to("no_such_device")
    with pytest.raises(TypeError):
        model.to_empty("cpu")


def test_torch_flags_are_respected():
    model = nn.Linear(2, 2)
    weight = model.weight
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        model.to("chameleon")
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    assert model.weight is not weight
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        weight = model.weight
        model.cpu()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert model.weight is weight


def test_swap_flag_is_not_set():
    assert not torch.__future__.get_swap_module_params_on_conversion()


def test_the_state_is_per_thread():
    assert module_to._thread.conversion is None
    with pytest.raises(MemoryError):
        Fails().to("chameleon")
    assert module_to._thread.conversion is None
