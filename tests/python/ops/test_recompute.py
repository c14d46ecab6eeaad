"""Tensors that are dropped and made again by running ops again.

Under stress every op that may run again is recorded and what it made is
dropped at every turn; nothing of that may show: bits, running statistics,
generators, hooks, versions.
"""

import gc
import pathlib
import re

import pytest
import torch
import torch_chameleon
from support import ROOT, dropping, evicting, moved, on_both, same_bits, values
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch_chameleon import _C, _testing


@pytest.fixture(autouse=True)
def _clean():
    yield
    gc.collect()
    torch_chameleon.reset_swap_stats()
    _C.check_invariants(0, 3)


class Block(nn.Module):
    """A transformer block with dropout."""

    def __init__(self, width, heads, p):
        super().__init__()
        self.heads, self.p = heads, p
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            each.view(batch, length, self.heads, -1).transpose(1, 2)
            for each in self.qkv(self.first(x)).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=self.p
        )
        mixed = mixed.transpose(1, 2).reshape(batch, length, width)
        x = x + functional.dropout(self.out(mixed), self.p)
        hidden = self.down(functional.gelu(self.up(self.second(x))))
        return x + functional.dropout(hidden, self.p)


class Gpt(nn.Module):
    def __init__(self, checkpointed=False):
        super().__init__()
        self.checkpointed = checkpointed
        self.words, self.places = nn.Embedding(31, 32), nn.Embedding(12, 32)
        self.blocks = nn.ModuleList(Block(32, 4, 0.1) for _ in range(2))
        self.norm = nn.LayerNorm(32)

    def forward(self, tokens):
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        x = functional.dropout(x, 0.1)
        for block in self.blocks:
            if self.checkpointed:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return functional.linear(self.norm(x), self.words.weight)


class ResNet(nn.Module):
    """Batch norm, relu in place, and sums in place."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(5))
        self.convs = nn.ModuleList(
            nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(4)
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = functional.relu(self.norms[0](self.stem(x)), inplace=True)
        x = functional.max_pool2d(x, 2)
        for i in (0, 2):
            out = functional.relu(
                self.norms[i + 1](self.convs[i](x)), inplace=True
            )
            out = self.norms[i + 2](self.convs[i + 1](out))
            out += x
            x = functional.relu(out, inplace=True)
        return self.head(x.mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(6, 10, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(10, 4)

    def forward(self, x):
        return self.head(self.cells(x)[0][:, -1])


def tokens(device, step):
    draws = torch.Generator().manual_seed(step)
    return torch.randint(0, 31, (2, 13), generator=draws).to(device)


def train(device, make, batch, make_optimizer, steps=3, around=None):
    torch.manual_seed(3)
    model = make().to(device)
    optimizer = make_optimizer(model.parameters())
    losses = []
    for step in range(steps):
        if around is not None:
            around(model, step, device)
        loss = batch(model, step, device)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    generator = torch.get_rng_state().tolist()
    parameters = [p.detach() for p in model.parameters()]
    return [*losses, *parameters, *model.buffers(), generator]


def next_token(model, step, device):
    both = tokens(device, step)
    logits = model(both[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), both[:, 1:].flatten())


def classify(shape, classes):
    def batch(model, step, device):
        draws = torch.Generator().manual_seed(step)
        labels = torch.randint(0, classes, (shape[0],), generator=draws)
        inputs = values(device, *shape, seed=step)
        return functional.cross_entropy(model(inputs), labels.to(device))

    return batch


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)


def accumulated(model, step, device):
    for micro in range(2):
        (next_token(model, 10 * step + micro, device) / 3).backward()
    return next_token(model, step, device)


def penalised(model, step, device):
    """The gradient of a gradient."""
    loss = next_token(model, step, device)
    weights = [model.blocks[0].up.weight, model.norm.weight]
    grads = torch.autograd.grad(loss, weights, create_graph=True)
    return loss + sum(g.square().sum() for g in grads)


def kept(model, step, device):
    loss = next_token(model, step, device)
    loss.backward(retain_graph=True)
    return loss


def evaluated(model, step, device):
    model.eval()
    with torch.no_grad():
        model(tokens(device, 100 + step)[:, :-1])
    model.train()


def hooked(model, step, device):
    if step == 0:
        model.norm.register_forward_hook(lambda m, i, out: out * 1.5)
        model.norm.weight.register_hook(lambda grad: grad * 0.5)


TRAININGS = {
    "gpt": lambda device: train(device, Gpt, next_token, adamw),
    "fused": lambda device: train(
        device,
        Gpt,
        next_token,
        lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    ),
    "resnet": lambda device: train(
        device, ResNet, classify((4, 3, 8, 8), 5), momentum
    ),
    "channels last": lambda device: train(
        device,
        lambda: ResNet().to(memory_format=torch.channels_last),
        classify((4, 3, 8, 8), 5),
        momentum,
    ),
    "lstm": lambda device: train(
        device, Recurrent, classify((3, 5, 6), 4), adamw
    ),
    "accumulated": lambda device: train(device, Gpt, accumulated, adamw, 2),
    "penalised": lambda device: train(device, Gpt, penalised, momentum, 2),
    "kept graph": lambda device: train(device, Gpt, kept, adamw, 2),
    "evaluated": lambda device: train(
        device, Gpt, next_token, adamw, 2, evaluated
    ),
    "hooked": lambda device: train(device, Gpt, next_token, adamw, 2, hooked),
    "checkpointed": lambda device: train(
        device, lambda: Gpt(checkpointed=True), next_token, adamw, 2
    ),
}


@pytest.mark.parametrize("which", ["record", "all", "random"])
@pytest.mark.parametrize("name", TRAININGS)
def test_trainings_have_native_bits(name, which):
    def run():
        with dropping(which, 5):
            on_both(TRAININGS[name])

    figures = moved(run)
    if which != "record":
        assert figures["dropped_bytes"] > 0
        assert figures["rerun_ops"] > 10


def test_also_while_tensors_leave():
    with evicting("random", 1), dropping("random", 2):
        on_both(TRAININGS["resnet"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    def function(device):
        with torch.autocast(device, dtype):
            return TRAININGS["gpt"](device)

    with dropping("random", 4):
        on_both(function)


# ---- one op at a time --------------------------------------------------------


def dropped(action, *operands):
    """The action's result, dropped."""
    with dropping("record"):
        result = action(*operands)
        assert _testing.drop(result)
    assert _testing.block_state(result)["state"] == "dropped"
    return result


def test_comes_back_where_it_is_read():
    x = values("chameleon", 4, 5)
    y = dropped(torch.exp, x)
    assert same_bits(y, x.cpu().exp())
    assert _testing.block_state(y)["state"] == "resident"


def test_views_and_aliases_come_back_with_it():
    x = values("chameleon", 4, 6)
    y = dropped(torch.exp, x)
    view = y.t()[1:, ::2]
    z = view.mul(2)
    assert same_bits(z, x.cpu().exp().t()[1:, ::2].mul(2))
    assert view.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def test_its_own_generator_gives_the_same_numbers_again():
    generators = [torch.Generator(d) for d in ("cpu", "chameleon")]
    for generator in generators:
        generator.manual_seed(8)
    native = torch.empty(9).normal_(generator=generators[0])
    with dropping("record"):
        ours = torch.empty(9, device="chameleon")
        ours.normal_(generator=generators[1])
        torch.manual_seed(1)
        state = torch.get_rng_state()
        assert _testing.drop(ours)
    assert same_bits(native, ours)
    assert torch.equal(state, torch.get_rng_state())
    again = torch.empty(9, device="chameleon").normal_(generator=generators[1])
    assert same_bits(torch.empty(9).normal_(generator=generators[0]), again)


def test_an_op_without_a_generator_argument_leaves_the_default_one():
    x = values("chameleon", 50)
    torch.manual_seed(4)
    y = dropped(lambda: torch.native_dropout(x, 0.5, True)[0])
    torch.rand(3)  # so that the re-run does not end in this state anyway
    before = torch.get_rng_state()
    torch.manual_seed(4)
    expected = torch.native_dropout(x.cpu(), 0.5, True)[0]
    torch.set_rng_state(before)
    assert same_bits(y, expected)
    assert torch.equal(before, torch.get_rng_state())


def test_scalars_on_the_cpu_are_as_they_were():
    x, scale = values("chameleon", 7), torch.tensor(3.0)
    y = dropped(torch.mul, x, scale)
    scale.fill_(100)
    assert same_bits(y, x.cpu() * 3)


def test_settings_are_those_of_the_first_run():
    x = torch.arange(1, 9, device="chameleon")
    y = dropped(torch.true_divide, x, 3)
    torch.set_default_dtype(torch.float64)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert same_bits(y, (x.cpu().to(torch.float32) / 3))
        assert torch.get_default_dtype() == torch.float64
        assert torch.get_num_threads() == threads + 1
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(threads)


@pytest.mark.parametrize("then", [True, False])
def test_denormals_are_flushed_as_at_the_first_run(then):
    x = torch.full((100,), 1e-39).to("chameleon")
    try:
        if not torch.set_flush_denormal(then):
            pytest.skip("this processor has no such flag")
        expected = x.cpu() * 0.5
        y = dropped(torch.mul, x, 0.5)
        torch.set_flush_denormal(not then)
        assert same_bits(y, expected)
        flushes = torch.ones(1).mul(1e-39).item() == 0
        assert flushes is not then
    finally:
        torch.set_flush_denormal(False)


# What a re-run need not find as it was.
NOT_BITS = {
    "setSDP": "chooses an op above the device",
    "setUserEnabledFlashSDP": "chooses an op above the device",
    "setUserEnabledMathSDP": "chooses an op above the device",
    "setAllowFP16BF16ReductionMathSDP": "is read above the device",
    "setFloat32MatmulPrecision": "sets precisions that are held",
    "setAllowTF32": "sets precisions that are held",
    "setImmediateMiopen": "is for ROCm",
    "setROCmFAPreferredBackend": "is for ROCm",
    "setQEngine": "packed weights of quantized ops are no tensors",
    "setCheckSparseTensorInvariants": "checks",
    "setReleaseWeightsWhenPrepacking": "is about memory",
    "setDisplayVmapFallbackWarnings": "warns",
    "setWarnOnAccumulateGradStreamMismatch": "warns",
    "setDefaultMobileCPUAllocator": "is about memory",
}


def test_each_setting_of_pytorch_is_held_or_does_not_matter():
    header = pathlib.Path(torch.__file__).parent / "include/ATen/Context.h"
    settable = set(re.findall(r"\b(_?set[A-Z]\w+)\(", header.read_text()))
    ours = (ROOT / "kernels/reruns/bit_settings.cpp").read_text()
    held = set(re.findall(r"(?:\.|::)(_?set[A-Z]\w+)\(", ours))
    left = {
        name for name in settable - held if not name.startswith(tuple(NOT_BITS))
    }
    assert left == set()


def test_nobody_sees_a_rerun():
    x = values("chameleon", 6).requires_grad_()
    with dropping("record"):
        y = x.exp()
        z = y.mul(2)
        version = y._version
        assert _testing.drop(y)
        with torch.profiler.profile() as prof:
            z.sum().backward()
    names = [event.name for event in prof.events()]
    assert "aten::exp" not in names
    assert y._version == version
    assert same_bits(x.grad, x.detach().cpu().exp() * 2)


def test_an_optimizer_that_changes_a_weight_brings_back_what_needs_it():
    x, w = values("chameleon", 4, 4), values("chameleon", 4, 4, seed=1)
    expected = x.cpu() @ w.cpu()
    y = dropped(torch.mm, x, w)
    w.add_(1)
    assert _testing.block_state(y)["state"] == "resident"
    assert same_bits(y, expected)
    z = dropped(torch.mm, x, w)
    w.data = torch.zeros(4, 4, device="chameleon")
    assert same_bits(z, x.cpu() @ (values("cpu", 4, 4, seed=1) + 1))


def test_reruns_are_in_the_figures():
    x = values("chameleon", 256)

    def action():
        y = dropped(lambda: x.exp().relu_())
        y.cpu()

    figures = moved(action)
    assert figures["dropped_bytes"] == 1024
    assert figures["rerun_ops"] == 2
    assert figures["rerun_ns"] > 0


def test_temporaries_are_held_for_it_and_freed():
    x = values("chameleon", 256)
    with dropping("record"):
        y = x.exp().neg().sin()
        gc.collect()
        held = torch_chameleon.swap_stats()["held_bytes"]
        assert held == 2 * 1024
        assert _testing.drop(y)
    assert same_bits(y, x.cpu().exp().neg().sin())
    assert torch_chameleon.swap_stats()["held_bytes"] == 0


# ---- what may run again ----------------------------------------------------


def test_rules():
    rules = dict(_testing.rerun_rules())
    for op in (
        "aten::addmm",
        "aten::gelu",
        "aten::native_layer_norm",
        "aten::native_batch_norm",
        "aten::relu_",
        "aten::add_.Tensor",
        "aten::bernoulli_.float",
        "aten::native_dropout",
        "aten::cat",
        "aten::max_pool2d_with_indices",
        "aten::_softmax",
        "aten::clone",
        "chameleon::copy_within_",
    ):
        assert rules[op] == "may", op
    for op, reason in {
        "aten::_foreach_add_.List": "list op",
        "aten::_fused_adamw_": "list op",
        "aten::nonzero": "depends on values",
        "aten::equal": "results",
        "aten::_index_put_impl_": "nondeterministic",
        "aten::scatter_add": "nondeterministic",
        "aten::linalg_lstsq": "depends on values",
    }.items():
        assert rules[op] == reason, op
    assert "?" not in rules.values()


def test_what_may_not_run_again_is_kept():
    x = values("chameleon", 9)
    with dropping("record"):
        kept = [
            x.nonzero(),
            functional.batch_norm(
                x.view(3, 3), x[:3].clone(), x[:3].square(), training=False
            ),
            x[torch.arange(8, -1, -1, device="chameleon")].index_put_(
                (torch.tensor([0], device="chameleon"),), x[0]
            ),
        ]
        assert not any(_testing.drop(each) for each in kept)


@pytest.mark.parametrize("value", ["auto", "off"])
def test_the_option(value):
    with torch_chameleon.config.patch(recompute=value):
        on_both(TRAININGS["gpt"])
    with pytest.raises(ValueError, match="recompute"):
        torch_chameleon.config.recompute = "sometimes"
