"""Complex numbers, and lazy conjugation and negation, as natively."""

import pytest
import torch
from torch import nn

from conformance.harness.pagers import PAGERS
from conformance.harness.suite import Suite


def numbers(device, *shape, dtype=torch.complex64):
    draws = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, dtype=dtype, generator=draws).to(device)


def lazy(device):
    """conj() and imag of conj() are views with a bit set."""
    x = numbers(device, 3, 4)
    conjugated = x.conj()
    negated = conjugated.imag
    return (
        x,
        conjugated,
        negated,
        conjugated.resolve_conj(),
        negated.resolve_neg(),
        conjugated.t(),
        conjugated[1:],
        conjugated.conj(),
        x.mT.conj(),
        torch.view_as_real(x),
        x.H,
        x.adjoint(),
        conjugated.is_conj(),
        negated.is_neg(),
        conjugated.is_contiguous(),
    )


def used(device):
    """Ops that resolve the bit, and ops that know it."""
    x, y = numbers(device, 3, 3), numbers(device, 3, 4)
    bits = x.imag
    conjugated, negated = x.conj(), x.conj().imag
    return (
        conjugated @ y,
        y.mH @ conjugated,
        conjugated + 1,
        conjugated * negated,
        negated.exp(),
        negated + bits,
        torch.cat([conjugated, x]),
        torch.dot(conjugated[0], x[0]),
        torch.vdot(conjugated[0], x[0]),
        conjugated.abs(),
        conjugated.angle(),
        conjugated.clone(),
        conjugated.cpu().resolve_conj().clone(),
        negated.cpu().resolve_neg().clone(),
        negated.tolist(),
        conjugated[0, 0].item(),
        negated[0, 0].item(),
        conjugated.to(torch.complex128),
        torch.where(bits > 0, conjugated, x),
        torch.addmm(conjugated, x, conjugated),
        torch.linalg.solve(conjugated, y),
        torch.fft.fft(conjugated),
    )


def written(device):
    """Writes through lazy views reach the base, each with its bit."""
    x, y = numbers(device, 3, 4), numbers(device, 3, 4)
    x.conj().mul_(2)
    x.conj()[0].copy_(y[0])
    x.conj().imag.fill_(3)
    x[1].conj().add_(y[1].conj())
    x.real[2] = -1
    y.copy_(x.conj())
    torch.add(x, x.conj(), out=y.conj())
    y.conj()[1:, 2] = 7 + 1j
    z = torch.zeros(3, 4, dtype=torch.complex64).to(device)
    z.copy_(x.conj().cpu())
    host = torch.zeros(3, 4, dtype=torch.complex64)
    host.copy_(x.conj())
    host.conj().copy_(x)
    return x, y, z, host, x._version, y._version


def differentiated(device):
    x = numbers(device, 3, 3).requires_grad_()
    result = (x.conj() @ x + x.mH).abs().sum() + x.conj().imag.exp().sum()
    result.backward()
    y = numbers(device, 4).requires_grad_()
    second = torch.autograd.grad(
        torch.autograd.grad(y.conj().pow(3).abs().sum(), y, create_graph=True)[
            0
        ]
        .abs()
        .sum(),
        y,
    )
    return result, x.grad, second


def layers(device):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(4, 5, dtype=torch.complex64),
        nn.Tanh(),
        nn.Linear(5, 2, dtype=torch.complex64),
    ).to(device)
    optimizer = torch.optim.Adam(net.parameters(), foreach=True)
    for _ in range(2):
        optimizer.zero_grad()
        net(numbers(device, 3, 4)).abs().sum().backward()
        optimizer.step()
    conv = nn.Conv2d(2, 3, 3, dtype=torch.complex64).to(device)
    image = numbers(device, 1, 2, 5, 5).conj()
    return [(p, p.grad) for p in net.parameters()], conv(image)


def conversions(device):
    x = numbers(device, 3, 2)
    return (
        torch.complex(x.real, x.imag),
        torch.polar(x.abs(), x.angle()),
        torch.view_as_complex(torch.view_as_real(x)),
        x.real.to(torch.complex128),
        torch.tensor([1 + 2j, 3], device=device),
        torch.isreal(x),
        x.real.is_contiguous(),
        x.view(torch.float32),
        x.real.contiguous().view(torch.int32),
        x.chalf().to(torch.complex64),
        torch.complex(x.real.double(), x.imag.double()).conj_physical_(),
    )


def saved(device):
    """A file keeps the bit; a deep copy too."""
    import copy
    import io

    x = numbers(device, 3, 2).conj()
    file = io.BytesIO()
    torch.save([x, x.imag], file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    return loaded, copy.deepcopy(x), str(loaded[0].device)


@pytest.mark.parametrize("pager", PAGERS)
@pytest.mark.parametrize(
    "case",
    [lazy, used, written, differentiated, layers, conversions, saved],
)
def test_case(case, pager):
    suite = Suite("complex")
    suite.case(case.__name__, "run", torch.complex64, [case], [pager])
    suite.verify()
