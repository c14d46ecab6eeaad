"""torch.func on whole models: per-sample gradients, ensembles, curvature."""

import copy

import pytest
import torch
import torch._decomp.decompositions_for_jvp  # warns once, so now
from torch import func, nn

from conformance.harness.pagers import PAGERS
from conformance.harness.suite import Suite


def model(device, seed=0, kind="mlp"):
    torch.manual_seed(seed)
    if kind == "conv":
        made = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.GroupNorm(2, 4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64, 3),
        )
    else:
        made = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    return made.to(device)


def batch(device, kind="mlp"):
    draws = torch.Generator().manual_seed(1)
    shape = (6, 2, 4, 4) if kind == "conv" else (6, 5)
    x = torch.randn(shape, generator=draws).to(device)
    y = torch.randint(3, (6,), generator=draws).to(device)
    return x, y


def functional(net):
    parameters = {k: v.detach() for k, v in net.named_parameters()}

    def loss(parameters, x, y):
        results = func.functional_call(net, parameters, (x,))
        return nn.functional.cross_entropy(results, y)

    return parameters, loss


def per_sample_gradients(device, kind="conv"):
    """vmap over grad, samples apart and parameters together."""
    parameters, loss = functional(model(device, kind=kind))
    x, y = batch(device, kind)
    gradient = func.vmap(func.grad(loss), in_dims=(None, 0, 0))
    return gradient(parameters, x.unsqueeze(1), y.unsqueeze(1))


def functional_call(device):
    """Other parameters than the module's own, which stay as they are."""
    net = model(device)
    other = {k: v.detach() * 2 for k, v in net.named_parameters()}
    x, _ = batch(device)
    result = func.functional_call(net, other, (x,))
    return result, net(x), dict(net.named_parameters())


def functional_call_tied(device):
    net = model(device)
    net[2].weight = nn.Parameter(net[0].weight.detach()[:3, :].clone())
    net[2] = nn.Linear(8, 8, device=device)
    net.extra = net[2]
    x, _ = batch(device)
    given = {"2.weight": torch.ones(8, 8, device=device)}
    return func.functional_call(net, given, (x,), tie_weights=True)


def ensemble(device):
    """stack_module_state and vmap, each member with its own randomness."""
    members = [model(device, seed) for seed in range(3)]
    parameters, buffers = func.stack_module_state(members)
    skeleton = copy.deepcopy(members[0]).to("meta")

    def call(parameters, buffers, x):
        noise = torch.rand_like(x)
        given = (x + noise,)
        return func.functional_call(skeleton, (parameters, buffers), given)

    x, _ = batch(device)
    torch.manual_seed(5)
    return parameters, func.vmap(
        call, in_dims=(0, 0, None), randomness="different"
    )(parameters, buffers, x)


def hessian_of_a_model(device):
    parameters, loss = functional(model(device))
    x, y = batch(device)
    return func.hessian(loss)(parameters, x, y)


def jacobians_of_a_model(device):
    net = model(device)
    x, _ = batch(device)
    return func.jacrev(net)(x), func.jacfwd(net)(x)


def hessian_vector_product(device):
    parameters, loss = functional(model(device))
    x, y = batch(device)
    directions = {k: torch.ones_like(v) for k, v in parameters.items()}
    return func.jvp(
        func.grad(lambda p: loss(p, x, y)), (parameters,), (directions,)
    )


def vjp_with_auxiliary_results(device):
    parameters, loss = functional(model(device))
    x, y = batch(device)
    value, pull, aux = func.vjp(
        lambda p: (loss(p, x, y), p["0.weight"].sum()), parameters, has_aux=True
    )
    return value, pull(torch.ones_like(value)), aux


def nested_vmap(device):
    x, _ = batch(device)
    return func.vmap(func.vmap(torch.mul, (0, None)), (None, 0))(x[0], x)


def chunked_vmap(device):
    x, _ = batch(device)
    return func.vmap(torch.sin, chunk_size=2)(x), func.vmap(
        lambda row: row.sum() * row, out_dims=-1, chunk_size=4
    )(x)


def linearized(device):
    x, _ = batch(device)
    value, push = func.linearize(lambda t: t.sin() @ t.t(), x)
    return value, push(torch.ones_like(x))


def functionalized(device):
    """In-place ops and views turned into plain ones."""
    x, _ = batch(device)

    def inplace(given):
        whole = given.clone()
        whole[1:3].add_(1).mul_(2)
        return whole.t().cumsum(0)

    return func.functionalize(inplace)(x)


def dropout_under_vmap(device):
    x, _ = batch(device)
    drop = nn.Dropout(0.5)
    torch.manual_seed(4)
    return [
        func.vmap(drop, randomness=randomness)(x)
        for randomness in ("same", "different")
    ]


def batch_norm_under_vmap(device):
    net = nn.BatchNorm1d(5, device=device)
    func.replace_all_batch_norm_modules_(net)
    x, _ = batch(device)
    return func.vmap(net)(x.unsqueeze(1).expand(6, 4, 5))


def custom_function_under_transforms(device):
    class Cube(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])
            ctx.save_for_forward(inputs[0])

        @staticmethod
        def backward(ctx, grad):
            return grad * 3 * ctx.saved_tensors[0] ** 2

        @staticmethod
        def jvp(ctx, tangent):
            return tangent * 3 * ctx.saved_tensors[0] ** 2

    x, _ = batch(device)
    return (
        func.vmap(func.grad(lambda t: Cube.apply(t).sum()))(x),
        func.jvp(Cube.apply, (x,), (x,)),
        func.vmap(Cube.apply)(x),
    )


def jacobian_of_autograd(device):
    x, _ = batch(device)
    small = x[:2, :3]
    functional = torch.autograd.functional
    return (
        functional.jacobian(torch.tanh, small, vectorize=True),
        functional.jacobian(torch.tanh, small),
        functional.hessian(lambda t: t.exp().sum(), small, vectorize=True),
        functional.jacobian(
            torch.tanh, small, strategy="forward-mode", vectorize=True
        ),
    )


def batched_gradients(device):
    x, _ = batch(device)
    x.requires_grad_()
    result = (x.sin() @ x.t()).sum(0)
    weights = torch.eye(6, device=device)
    return torch.autograd.grad(result, x, weights, is_grads_batched=True)


CASES = [
    per_sample_gradients,
    functional_call,
    functional_call_tied,
    ensemble,
    hessian_of_a_model,
    jacobians_of_a_model,
    hessian_vector_product,
    vjp_with_auxiliary_results,
    nested_vmap,
    chunked_vmap,
    linearized,
    functionalized,
    dropout_under_vmap,
    batch_norm_under_vmap,
    custom_function_under_transforms,
    jacobian_of_autograd,
    batched_gradients,
]


@pytest.mark.parametrize("pager", PAGERS)
@pytest.mark.parametrize("case", CASES)
def test_case(case, pager):
    suite = Suite("func")
    suite.case(case.__name__, "run", torch.float32, [case], [pager])
    suite.verify()
