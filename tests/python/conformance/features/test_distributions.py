"""torch.distributions: draws, densities, divergences, and their gradients."""

import inspect

import pytest
import torch
from torch import distributions
from torch.distributions import kl, transforms

from conformance.harness import selection
from conformance.harness.pagers import PAGERS
from conformance.harness.placing import Placer
from conformance.harness.suite import Suite


def positive(*shape):
    return torch.rand(shape) + 0.5


def spd(n):
    root = torch.randn(n, n)
    return root @ root.t() + n * torch.eye(n)


D = distributions

# Parameters are drawn on the CPU and placed, values too.
MAKERS = {
    "Bernoulli": lambda: {"probs": torch.rand(3)},
    "Bernoulli_logits": lambda: {"logits": torch.randn(3)},
    "Beta": lambda: {
        "concentration1": positive(3),
        "concentration0": positive(3),
    },
    "Binomial": lambda: {
        "total_count": torch.tensor([3.0, 5.0]),
        "probs": torch.rand(2),
    },
    "Categorical": lambda: {"probs": torch.rand(2, 4)},
    "Categorical_logits": lambda: {"logits": torch.randn(2, 4)},
    "Cauchy": lambda: {"loc": torch.randn(3), "scale": positive(3)},
    "Chi2": lambda: {"df": positive(3)},
    "ContinuousBernoulli": lambda: {"probs": torch.rand(3)},
    "Dirichlet": lambda: {"concentration": positive(2, 3)},
    "Exponential": lambda: {"rate": positive(3)},
    "FisherSnedecor": lambda: {"df1": positive(3), "df2": positive(3) + 4},
    "Gamma": lambda: {"concentration": positive(3), "rate": positive(3)},
    "GeneralizedPareto": lambda: {
        "loc": torch.randn(3),
        "scale": positive(3),
        "concentration": torch.rand(3),
    },
    "Geometric": lambda: {"probs": torch.rand(3) * 0.8 + 0.1},
    "Gumbel": lambda: {"loc": torch.randn(3), "scale": positive(3)},
    "HalfCauchy": lambda: {"scale": positive(3)},
    "HalfNormal": lambda: {"scale": positive(3)},
    "InverseGamma": lambda: {
        "concentration": positive(3),
        "rate": positive(3),
    },
    "Kumaraswamy": lambda: {
        "concentration1": positive(3),
        "concentration0": positive(3),
    },
    "LKJCholesky": lambda: {"dim": 3, "concentration": torch.tensor(1.5)},
    "Laplace": lambda: {"loc": torch.randn(3), "scale": positive(3)},
    "LogNormal": lambda: {"loc": torch.randn(3), "scale": positive(3)},
    "LogisticNormal": lambda: {"loc": torch.randn(3), "scale": positive(3)},
    "LowRankMultivariateNormal": lambda: {
        "loc": torch.randn(4),
        "cov_factor": torch.randn(4, 2),
        "cov_diag": positive(4),
    },
    "Multinomial": lambda: {"total_count": 5, "probs": torch.rand(4)},
    "MultivariateNormal": lambda: {
        "loc": torch.randn(3),
        "covariance_matrix": spd(3),
    },
    "MultivariateNormal_tril": lambda: {
        "loc": torch.randn(3),
        "scale_tril": torch.linalg.cholesky(spd(3)),
    },
    "MultivariateNormal_precision": lambda: {
        "loc": torch.randn(3),
        "precision_matrix": spd(3),
    },
    "NegativeBinomial": lambda: {
        "total_count": torch.tensor([3.0, 5.0]),
        "logits": torch.randn(2),
    },
    "Normal": lambda: {"loc": torch.randn(3), "scale": positive(3)},
    "OneHotCategorical": lambda: {"probs": torch.rand(2, 4)},
    "OneHotCategoricalStraightThrough": lambda: {"probs": torch.rand(2, 4)},
    "Pareto": lambda: {"scale": positive(3), "alpha": positive(3)},
    "Poisson": lambda: {"rate": positive(3) * 3},
    "RelaxedBernoulli": lambda: {
        "temperature": torch.tensor(0.7),
        "probs": torch.rand(3),
    },
    "RelaxedOneHotCategorical": lambda: {
        "temperature": torch.tensor(0.7),
        "probs": torch.rand(3),
    },
    "StudentT": lambda: {
        "df": positive(3) + 2,
        "loc": torch.randn(3),
        "scale": positive(3),
    },
    "Uniform": lambda: {"low": torch.randn(3), "high": torch.randn(3) + 5},
    "VonMises": lambda: {"loc": torch.randn(3), "concentration": positive(3)},
    "Weibull": lambda: {"scale": positive(3), "concentration": positive(3)},
    "Wishart": lambda: {"df": torch.tensor(5.0), "covariance_matrix": spd(3)},
}


def parameters(name, device, dtype, requires_grad):
    torch.manual_seed(3)

    def cast(value):
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(dtype).requires_grad_(requires_grad)

    made = {key: cast(value) for key, value in MAKERS[name]().items()}
    return Placer(device)(made)


def tensors(values):
    return [v for v in values if isinstance(v, torch.Tensor)]


def figure(distribution, name):
    """A property or method; the exception's type where there is none."""
    try:
        value = getattr(distribution, name)
        return value() if inspect.ismethod(value) else value
    except (NotImplementedError, AttributeError, ValueError) as error:
        return type(error).__name__


def draws(name, dtype):
    def action(device):
        kind = getattr(D, name.split("_")[0])
        given = parameters(name, device, dtype, True)
        made = kind(**given)
        torch.manual_seed(1)
        drawn = made.sample((4,))
        density = made.log_prob(drawn)
        sources = tensors(given.values())
        gradients = ()
        if density.requires_grad:
            gradients = torch.autograd.grad(
                density.sum(), sources, allow_unused=True
            )
        reparametrized = ()
        if made.has_rsample:
            path = made.rsample((2, 3))
            reparametrized = (
                path,
                torch.autograd.grad(
                    path.square().sum(), sources, allow_unused=True
                ),
            )
        return drawn, density, gradients, reparametrized

    return action


FIGURES = ("mean", "mode", "variance", "stddev", "entropy", "perplexity")


def figures(name, dtype):
    def action(device):
        kind = getattr(D, name.split("_")[0])
        made = kind(**parameters(name, device, dtype, False))
        wide = made.expand((2, *made.batch_shape))
        torch.manual_seed(1)
        drawn = made.sample()
        more = ()
        if made.has_enumerate_support:
            more = figure(made, "enumerate_support")
        try:
            cumulative = made.cdf(drawn)
            back = made.icdf(torch.full_like(cumulative, 0.3))
        except NotImplementedError:
            cumulative = back = ()
        return (
            [figure(made, name) for name in FIGURES],
            [figure(wide, name) for name in FIGURES[:1]],
            drawn,
            cumulative,
            back,
            more,
        )

    return action


@pytest.mark.parametrize("name", MAKERS)
def test_sample_of_distribution(name):
    suite = Suite("distributions")
    for check, make in (("draws", draws), ("figures", figures)):
        dtype = selection.choose((torch.float32, torch.float64), 1, name)[0]
        pagers = selection.choose(PAGERS, 1, name, check)
        suite.case(
            name, check, dtype, [make(name, dtype)], pagers, complete=False
        )
    suite.verify()


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_distribution(name):
    suite = Suite("distributions")
    for dtype in (torch.float32, torch.float64):
        suite.case(name, "draws", dtype, [draws(name, dtype)])
        suite.case(name, "figures", dtype, [figures(name, dtype)])
    suite.verify()


def divergence(first, second):
    def action(device):
        dtype = torch.float64
        one = getattr(D, first.split("_")[0])(
            **parameters(first, device, dtype, True)
        )
        other = getattr(D, second.split("_")[0])(
            **parameters(second, device, dtype, False)
        )
        return kl.kl_divergence(one, other)

    return action


def test_divergences():
    """Every registered pair that the table above can make."""
    suite = Suite("distributions")
    by_kind = {getattr(D, n.split("_")[0]): n for n in MAKERS}
    pairs = [
        (by_kind[one], by_kind[other])
        for one, other in kl._KL_REGISTRY
        if one in by_kind and other in by_kind
    ]
    assert len(pairs) > 50
    for one, other in pairs:
        suite.case(
            f"{one}-{other}",
            "divergence",
            torch.float64,
            [divergence(one, other)],
            selection.choose(PAGERS, 1, one, other),
        )
    suite.verify()


def transformed(device):
    torch.manual_seed(2)
    scale = positive(3).to(device).requires_grad_()
    base = D.Normal(torch.zeros(3, device=device), scale)
    made = D.TransformedDistribution(
        base,
        [
            transforms.AffineTransform(torch.ones(3, device=device), 2.0),
            transforms.SigmoidTransform(),
            transforms.PowerTransform(torch.tensor(2.0, device=device)),
        ],
    )
    path = made.rsample((4,))
    density = made.log_prob(path)
    return path, density, torch.autograd.grad(density.sum(), scale)


def mixture(device):
    torch.manual_seed(2)
    made = D.MixtureSameFamily(
        D.Categorical(torch.rand(4).to(device)),
        D.Independent(
            D.Normal(torch.randn(4, 2).to(device), positive(4, 2).to(device)), 1
        ),
    )
    drawn = made.sample((5,))
    return drawn, made.log_prob(drawn), made.mean, made.variance


def refused_parameters(device):
    # torch.compile turns validation off in its process.
    zeros = torch.zeros(2).to(device)
    return D.Normal(zeros, zeros.clone(), validate_args=True)


def refused_values(device):
    made = D.Bernoulli(torch.rand(2).to(device), validate_args=True)
    return made.log_prob(torch.tensor([0.5, 1.0], device=device))


@pytest.mark.parametrize("pager", PAGERS)
@pytest.mark.parametrize(
    "case", [transformed, mixture, refused_parameters, refused_values]
)
def test_case(case, pager):
    suite = Suite("distributions")
    suite.case(case.__name__, "run", torch.float32, [case], [pager])
    suite.verify()
