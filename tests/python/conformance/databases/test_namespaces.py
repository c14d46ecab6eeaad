"""Every function of torch.linalg, torch.fft and torch.special, bit for bit."""

import pytest
import torch
from support import same_bits
from torch.utils._pytree import tree_flatten, tree_map

NOT_FUNCTIONS = {"LinAlgError", "Tensor"}


def public(module):
    names = getattr(module, "__all__", None) or dir(module)
    return {
        name
        for name in names
        if not name.startswith("_") and callable(getattr(module, name))
    } - NOT_FUNCTIONS


def rand(*size):
    return torch.rand(*size, dtype=torch.float64)


def square():
    return rand(2, 4, 4) + 4 * torch.eye(4, dtype=torch.float64)


def positive():
    half = square()
    return half @ half.mT


def lu_operands():
    return (*torch.linalg.lu_factor(square()), rand(2, 4, 3))


def ldl_operands():
    return (*torch.linalg.ldl_factor(positive()), rand(2, 4, 3))


LINALG = {
    "cholesky": lambda: (positive(),),
    "cholesky_ex": lambda: (positive(),),
    "cond": lambda: (square(),),
    "cross": lambda: (rand(5, 3), rand(5, 3)),
    "det": lambda: (square(),),
    "diagonal": lambda: (square(),),
    "eig": lambda: (square(),),
    "eigh": lambda: (positive(),),
    "eigvals": lambda: (square(),),
    "eigvalsh": lambda: (positive(),),
    "householder_product": lambda: torch.geqrf(rand(5, 3)),
    "inv": lambda: (square(),),
    "inv_ex": lambda: (square(),),
    "ldl_factor": lambda: (positive(),),
    "ldl_factor_ex": lambda: (positive(),),
    "ldl_solve": ldl_operands,
    "lstsq": lambda: (rand(6, 3), rand(6, 2)),
    "lu": lambda: (square(),),
    "lu_factor": lambda: (square(),),
    "lu_factor_ex": lambda: (square(),),
    "lu_solve": lu_operands,
    "matmul": lambda: (square(), rand(4, 3)),
    "matrix_exp": lambda: (square(),),
    "matrix_norm": lambda: (square(),),
    "matrix_power": lambda: (square(), 5),
    "matrix_rank": lambda: (square(),),
    "multi_dot": lambda: ([rand(3, 4), rand(4, 5), rand(5, 2)],),
    "norm": lambda: (square(),),
    "pinv": lambda: (rand(4, 3),),
    "qr": lambda: (rand(5, 3),),
    "slogdet": lambda: (square(),),
    "solve": lambda: (square(), rand(2, 4, 3)),
    "solve_ex": lambda: (square(), rand(2, 4, 3)),
    "solve_triangular": lambda: (square().triu(), rand(2, 4, 3)),
    "svd": lambda: (rand(5, 3),),
    "svdvals": lambda: (rand(5, 3),),
    "tensorinv": lambda: (square()[0].view(2, 2, 4), 2),
    "tensorsolve": lambda: (square()[0].view(2, 2, 2, 2), rand(2, 2)),
    "vander": lambda: (rand(4),),
    "vecdot": lambda: (rand(5, 3), rand(5, 3)),
    "vector_norm": lambda: (rand(5, 3),),
}
LINALG_OPTIONS = {"solve_triangular": {"upper": True}}

FFT_INPUTS = {
    "irfft": lambda: (torch.fft.rfft(rand(6)),),
    "irfft2": lambda: (torch.fft.rfft2(rand(4, 6)),),
    "irfftn": lambda: (torch.fft.rfftn(rand(4, 6)),),
    "hfft": lambda: (torch.fft.rfft(rand(6)),),
    "hfft2": lambda: (torch.fft.rfft2(rand(4, 6)),),
    "hfftn": lambda: (torch.fft.rfftn(rand(4, 6)),),
    "fftfreq": lambda: (7,),
    "rfftfreq": lambda: (7,),
}

TWO = [
    "chebyshev_polynomial_t",
    "chebyshev_polynomial_u",
    "chebyshev_polynomial_v",
    "chebyshev_polynomial_w",
    "gammainc",
    "gammaincc",
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
    "shifted_chebyshev_polynomial_t",
    "shifted_chebyshev_polynomial_u",
    "shifted_chebyshev_polynomial_v",
    "shifted_chebyshev_polynomial_w",
    "xlog1py",
    "xlogy",
    "zeta",
]
SPECIAL = {
    **{name: lambda: (rand(20) * 3, rand(20) * 4) for name in TWO},
    "log_softmax": lambda: (rand(4, 5), 1),
    "softmax": lambda: (rand(4, 5), 1),
    "logsumexp": lambda: (rand(4, 5), 1),
    "multigammaln": lambda: (rand(20) + 3, 2),
    "polygamma": lambda: (2, rand(20) + 1),
}

CALLS = [
    *((torch.linalg, name, LINALG.get(name)) for name in public(torch.linalg)),
    *(
        (torch.fft, name, FFT_INPUTS.get(name, lambda: (rand(4, 6),)))
        for name in public(torch.fft)
    ),
    *(
        (torch.special, name, SPECIAL.get(name, lambda: (rand(20),)))
        for name in public(torch.special)
    ),
]


def run(module, name, arguments, device):
    torch.manual_seed(0)
    arguments = tree_map(
        lambda value: value.to(device) if torch.is_tensor(value) else value,
        arguments(),
    )
    options = dict(LINALG_OPTIONS.get(name, {}))
    if name in ("fftfreq", "rfftfreq"):
        options["device"] = device
    return tree_flatten(getattr(module, name)(*arguments, **options))[0]


@pytest.mark.parametrize(
    ("module", "name", "arguments"),
    sorted(CALLS, key=lambda call: (call[0].__name__, call[1])),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_same_bits(module, name, arguments):
    assert arguments is not None, "a new function: give it operands"
    native = run(module, name, arguments, "cpu")
    ours = run(module, name, arguments, "chameleon")
    assert len(native) == len(ours) > 0
    for one, other in zip(native, ours, strict=True):
        assert other.is_chameleon
        assert one.stride() == other.stride()
        if name == "lstsq":  # natively, too, bits vary with the addresses
            torch.testing.assert_close(other.cpu(), one)
        else:
            assert same_bits(one, other)
