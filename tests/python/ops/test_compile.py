"""torch.compile and torch.export: what works has the CPU's bits.

What does not, which is Inductor, ends in a sentence, or in what works.
"""

import io
import re
import warnings

import pytest
import torch
import torch_chameleon
from support import MIB, evicting, moved, same_bits, values
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch_chameleon._patches import inductor


@pytest.fixture(autouse=True)
def afresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 7))

    def forward(self, tokens):
        return self.head(self.layer(self.embedding(tokens)))


def network(device):
    torch.manual_seed(0)
    return Network().to(device)


def tokens(device):
    return torch.arange(21).remainder(7).reshape(3, 7).to(device)


def trained(device, compiled):
    """Losses, parameters and gradients of a training with dropout."""
    model, given = network(device), tokens(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    call = compiled(model)
    losses = []
    torch.manual_seed(1)
    for _ in range(3):
        optimizer.zero_grad()
        logits = call(given).flatten(0, 1)
        losses.append(nn.functional.cross_entropy(logits, given.flatten()))
        losses[-1].backward()
        optimizer.step()
    parameters = list(model.parameters())
    return [*losses, *parameters, *(one.grad for one in parameters)]


def agree(ours, native):
    return all(same_bits(a, b) for a, b in zip(ours, native, strict=True))


@pytest.mark.parametrize("pager", ["never", "all"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_training(backend, pager):
    def compiled(model):
        return torch.compile(model, backend=backend, fullgraph=True)

    native = trained("cpu", lambda model: model)
    with evicting(pager):
        assert agree(trained("chameleon", compiled), native)


def graphs(device, dynamic):
    """The graphs of a training, as ops that run one by one."""
    found = []

    def back_end(graph, inputs):
        found.append(graph.code)
        return boxed_nop(graph, inputs)

    compiled = torch.compile(
        network(device),
        backend=aot_autograd(fw_compiler=back_end, bw_compiler=back_end),
        dynamic=dynamic,
    )
    compiled(tokens(device)).sum().backward()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_graphs_are_the_cpu_s(dynamic):
    native = graphs("cpu", dynamic)
    torch._dynamo.reset()
    assert graphs("chameleon", dynamic) == native


@pytest.mark.slow
def test_sizes_that_change():
    compiled = torch.compile(
        network("chameleon").eval(), backend="aot_eager", fullgraph=True
    )
    native = network("cpu").eval()
    for rows in (2, 3, 5):
        given = torch.ones(rows, 4, dtype=torch.int64)
        ours = compiled(given.to("chameleon"))
        assert same_bits(ours, native(given))
        ours.sum().backward()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("with_mask", [False, True])
def test_attention_is_laid_out_as_on_the_cpu(with_mask, dynamic):
    def attended(device):
        torch._dynamo.reset()
        compiled = torch.compile(
            nn.functional.scaled_dot_product_attention,
            backend="aot_eager",
            fullgraph=True,
            dynamic=dynamic,
        )
        found = []
        for size in (5, 6):
            given = [
                values(device, 2, 2, size, 8, seed=seed).requires_grad_()
                for seed in range(3)
            ]
            mask = values(device, size, size) if with_mask else None
            result = compiled(*given, attn_mask=mask)
            result.square().sum().backward()
            found += [result, *(one.grad for one in given)]
        return found

    ours, native = attended("chameleon"), attended("cpu")
    assert agree(ours, native)
    assert [x.stride() for x in ours] == [x.stride() for x in native]


OPTIMIZERS = [
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adadelta,
]


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_a_compiled_optimizer(kind):
    def stepped(device, compiled):
        parameters = [
            values(device, 3, 4, seed=n).requires_grad_() for n in range(2)
        ]
        optimizer = kind(parameters, lr=0.1, foreach=True)
        step = compiled(optimizer.step)
        for _ in range(3):
            for n, one in enumerate(parameters):
                one.grad = values(device, 3, 4, seed=5 + n)
            step()
        return parameters

    def compiled(step):
        return torch.compile(step, backend="aot_eager")

    # Some compute with other steps where they are compiled, on any device.
    native = stepped("cpu", compiled)
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert agree(stepped("chameleon", compiled), native)
    # Dynamo has no questions about the hook that ends a step.
    assert not [one for one in caught if "chameleon" in str(one.message)]


def test_a_compiled_optimizer_ends_steps(tight):
    tight(8 * MIB)
    parameter = values("chameleon", 4).requires_grad_()
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    parameter.grad = torch.ones_like(parameter)
    step = torch.compile(optimizer.step, backend="aot_eager")
    with torch_chameleon.config.patch(step_marks="auto"):
        assert moved(lambda: [step() for _ in range(20)])["steps"] > 0


def test_export():
    given = tokens("chameleon")
    program = torch.export.export(network("chameleon").eval(), (given,))
    wanted = network("cpu").eval()(tokens("cpu"))
    assert same_bits(program.module()(given), wanted)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    assert same_bits(torch.export.load(file).module()(given), wanted)


def test_a_device_that_only_the_graph_knows():
    @torch.compile(backend="aot_eager", fullgraph=True)
    def made(x):
        return (x.to("chameleon") + torch.ones(3, device="chameleon")).cpu()

    assert same_bits(made(torch.ones(3)), torch.full([3], 2.0))


# ---- Inductor, which takes seconds to import
def of_an_operand():
    return torch.compile(torch.sin)(torch.ones(3, device="chameleon"))


def of_a_module():
    return torch.compile(network("chameleon"))(tokens("chameleon"))


def of_a_module_in_place():
    model = network("chameleon")
    model.compile()
    return model(tokens("chameleon"))


def of_what_it_makes():
    return torch.compile(lambda: torch.ones(3, device="chameleon") + 1)()


def of_what_it_moves():
    return torch.compile(lambda x: x.to("chameleon") * 2)(torch.ones(3))


def of_what_it_hides():
    def compute(x):
        def nested(y):
            return ((y.to("chameleon") * 2).cpu(),)

        wrapped = torch.utils.checkpoint.checkpoint
        return wrapped(nested, x, use_reentrant=False)[0]

    return torch.compile(compute)(torch.ones(3, requires_grad=True))


def of_an_optimizer():
    parameter = torch.ones(3, device="chameleon", requires_grad=True)
    parameter.grad = torch.ones_like(parameter)
    torch.compile(torch.optim.Adam([parameter]).step)()
    return parameter


def with_cuda_graphs():
    compiled = torch.compile(torch.sin, mode="reduce-overhead")
    return compiled(torch.ones(3, device="chameleon"))


def attention():
    from torch.nn.attention.flex_attention import flex_attention

    q = values("chameleon", 1, 1, 128, 16)
    return torch.compile(flex_attention)(q, q, q)


WITH_INDUCTOR = [
    of_an_operand,
    of_a_module,
    of_a_module_in_place,
    of_what_it_makes,
    of_what_it_moves,
    of_what_it_hides,
    of_an_optimizer,
    with_cuda_graphs,
    attention,
]


@pytest.mark.slow
@pytest.mark.parametrize("case", WITH_INDUCTOR)
def test_inductor_is_refused_in_a_sentence(case):
    with pytest.raises(NotImplementedError) as error:
        case()
    assert str(error.value) == inductor._REFUSAL
    assert 'backend="aot_eager"' in inductor._REFUSAL


@pytest.mark.slow
@pytest.mark.parametrize("case", WITH_INDUCTOR)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_runs_in_its_place(case):
    with torch_chameleon.config.patch(compile="eager"):
        assert isinstance(case(), torch.Tensor)


@pytest.mark.slow
def test_a_training_in_its_place_has_the_same_bits():
    native = trained("cpu", lambda model: model)
    with (
        torch_chameleon.config.patch(compile="eager"),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        inductor._warn.cache_clear()
        ours = trained("chameleon", torch.compile)
        torch._dynamo.reset()
        assert agree(ours, trained("chameleon", torch.compile))
    assert agree(ours, native)
    texts = [str(one.message) for one in caught]
    assert texts.count(inductor._REPLACED) == 1


@pytest.mark.slow
def test_a_graph_whose_devices_nobody_told():
    def compute(x):
        return ((x.to("chameleon") * 2).cpu(),)

    graph = torch.fx.symbolic_trace(compute)
    with pytest.raises(Exception, match=re.escape(inductor._REFUSAL)) as error:
        torch._inductor.compile(graph, [torch.ones(3)])(torch.ones(3))
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["error", "eager"])
def test_code_for_ahead_of_time_is_refused(choice, tmp_path):
    given = tokens("chameleon")
    program = torch.export.export(network("chameleon").eval(), (given,))
    with (
        torch_chameleon.config.patch(compile=choice),
        pytest.raises(NotImplementedError) as error,
    ):
        torch._inductor.aoti_compile_and_package(
            program, package_path=str(tmp_path / "program.pt2")
        )
    assert str(error.value) == inductor._REFUSAL_AHEAD_OF_TIME


@pytest.mark.slow
def test_other_devices_have_inductor():
    seen = []

    def compile_fx(model, inputs, *args, **options):
        seen.append((model, inputs))

    with torch_chameleon.config.patch(compile="eager"):
        graph = torch.fx.symbolic_trace(nn.Linear(2, 2))
        inductor._checked(compile_fx)(graph, [torch.ones(2)])
    assert seen == [(graph, seen[0][1])]
