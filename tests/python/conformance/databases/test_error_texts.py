"""Errors are native's, and name the device as chameleon."""

import re
import warnings

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

from conformance.harness.parity_cases import module_db, moved_to, op_db

PARTS = 2

# A name of the device that no user knows.
INTERNAL = re.compile(r"privateuse", re.IGNORECASE)
# "cpu" as a device, where nothing of the user's is on the CPU.
CPU = re.compile(r"\bcpu(:0)?\b")


def error_of(run):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run()
        except Exception as error:
            return error
    return None


def same_text(native, ours):
    """Native's text, with our name where it names its device."""
    return re.fullmatch(
        re.escape(native).replace("cpu", "(cpu|chameleon:0|chameleon)"), ours
    )


def check(native, ours):
    """Returns what is wrong with an error, or None."""
    if type(native) is not type(ours):
        return f"native raises {native!r}, chameleon {ours!r}"
    if native is None:
        return None
    if not same_text(str(native), str(ours)):
        return f"native says {native}\nchameleon {ours}"
    if INTERNAL.search(str(ours)) or CPU.search(str(ours)):
        return f"chameleon says {ours}"
    return None


def error_inputs(op):
    if op.error_inputs_func is None:
        return []
    return [one.sample_input for one in op.error_inputs("cpu")]


def raised(op, sample, device):
    given, args, kwargs = tree_map(
        moved_to(device), (sample.input, sample.args, dict(sample.kwargs))
    )
    if "device" in kwargs:
        kwargs["device"] = device
    torch.manual_seed(0)
    return error_of(lambda: op(given, *args, **kwargs))


@pytest.mark.parametrize("part", range(PARTS))
def test_errors_of_operators(part):
    wrong, count = {}, 0
    for op in op_db[part::PARTS]:
        for sample in error_inputs(op):
            count += 1
            native = raised(op, sample, "cpu")
            ours = raised(op, sample, "chameleon")
            what = check(native, ours)
            if what is not None:
                wrong.setdefault(op.formatted_name, what)
    assert not wrong, "\n".join(
        f"{name}: {what}" for name, what in wrong.items()
    )
    assert count > 300


def raised_by_module(info, sample, device):
    given, built = sample.forward_input, sample.constructor_input
    torch.manual_seed(0)
    try:
        module = info.module_cls(*built.args, **built.kwargs).to(device)
    except Exception:  # while it is built, on no device
        return None
    args, kwargs = tree_map(moved_to(device), (given.args, given.kwargs))
    return error_of(lambda: module(*args, **kwargs))


def test_errors_of_modules():
    wrong, count = {}, 0
    for info in module_db:
        if info.module_error_inputs_func is None:
            continue
        errors = info.module_error_inputs_func(
            info,
            device="cpu",
            dtype=torch.float32,
            requires_grad=False,
            training=True,
        )
        for error in errors:
            sample = error.module_error_input
            native = raised_by_module(info, sample, "cpu")
            count += native is not None
            what = check(native, raised_by_module(info, sample, "chameleon"))
            if what is not None:
                wrong.setdefault(info.name, what)
    assert not wrong, "\n".join(map(": ".join, wrong.items()))
    assert count > 20


def here(*size):
    return torch.rand(*size, device="chameleon")


def there(*size):
    return torch.rand(*size)


def layer(module):
    return module.to("chameleon")


# What goes wrong -> (call, exception, what its text says).
MIX = r"chameleon:0 and cpu"
MISTAKES = {
    "add": (lambda: here(2) + there(2), RuntimeError, MIX),
    "matmul": (lambda: here(2, 2) @ there(2, 2), RuntimeError, MIX),
    "sum()": (lambda: sum([here(2), there(2)]), RuntimeError, MIX),
    "linear": (lambda: nn.Linear(2, 2)(here(1, 2)), RuntimeError, MIX),
    "conv": (lambda: nn.Conv1d(2, 2, 1)(here(1, 2, 2)), RuntimeError, MIX),
    "norm": (lambda: nn.LayerNorm(2)(here(2)), RuntimeError, MIX),
    "batch norm": (lambda: nn.BatchNorm1d(2)(here(2, 2)), RuntimeError, MIX),
    "embedding": (
        lambda: layer(nn.Embedding(4, 2))(torch.tensor([1])),
        RuntimeError,
        MIX,
    ),
    "lstm": (
        lambda: nn.LSTM(2, 2)(here(1, 1, 2)),
        RuntimeError,
        r"input tensor at chameleon:0 and parameter tensor at cpu",
    ),
    "lstm state": (
        lambda: layer(nn.LSTM(2, 2))(here(1, 1, 2), (there(1, 1, 2),) * 2),
        RuntimeError,
        r"input tensor at chameleon:0 and hidden tensor at cpu",
    ),
    "attention": (
        lambda: nn.functional.scaled_dot_product_attention(
            here(1, 1, 2, 2), there(1, 1, 2, 2), here(1, 1, 2, 2)
        ),
        RuntimeError,
        r"query.device: chameleon:0 key.device: cpu",
    ),
    "loss": (
        lambda: nn.functional.cross_entropy(here(2, 2), torch.tensor([0, 1])),
        RuntimeError,
        MIX,
    ),
    "loss of one": (
        lambda: nn.functional.cross_entropy(here(2), torch.tensor(0)),
        RuntimeError,
        MIX,
    ),
    "cat": (lambda: torch.cat([here(2), there(2)]), RuntimeError, MIX),
    "index": (
        lambda: there(2)[torch.tensor([0], device="chameleon")],
        RuntimeError,
        MIX,
    ),
    "in place": (lambda: there(2).add_(here(2)), RuntimeError, MIX),
    "out": (lambda: torch.add(1, here(2), out=there(2)), RuntimeError, MIX),
    "list": (
        lambda: torch._foreach_add([here(2)], [there(2)]),
        RuntimeError,
        MIX,
    ),
    "gradient": (
        lambda: here(2).requires_grad_().mul(1).backward(there(2)),
        RuntimeError,
        r"expected device chameleon:0 but got cpu",
    ),
    "set gradient": (
        lambda: setattr(here(2).requires_grad_(), "grad", there(2)),
        RuntimeError,
        r"type 'cpu' to a tensor with device type 'chameleon'",
    ),
    "storage": (
        lambda: here(2).set_(there(2)),
        RuntimeError,
        r'on device "chameleon:0" to a storage on different device "cpu"',
    ),
    "numpy": (
        lambda: here(2).numpy(),
        TypeError,
        r"chameleon tensor has no fixed place.*resident",
    ),
    "pin": (lambda: here(2).pin_memory(), RuntimeError, r"'chameleon.*' only"),
    "generator": (
        lambda: torch.randn(2, device="chameleon", generator=torch.Generator()),
        RuntimeError,
        r"Expected a 'chameleon' device type for generator but found 'cpu'",
    ),
    "our generator": (
        lambda: torch.randn(2, generator=torch.Generator("chameleon")),
        RuntimeError,
        r"Expected a 'cpu' device type for generator but found 'chameleon'",
    ),
    "ordinal": (
        lambda: there(2).to("chameleon:9"),
        RuntimeError,
        r"chameleon.*9",
    ),
    "half": (
        lambda: torch.linalg.cholesky(here(2, 2).half()),
        RuntimeError,
        r"not implemented for 'Half'",
    ),
    "split": (
        lambda: torch.tensor_split(
            here(4), torch.tensor([1], device="chameleon")
        ),
        RuntimeError,
        r"to be on cpu, but it's on chameleon:0",
    ),
    "lengths": (
        lambda: nn.utils.rnn.pack_padded_sequence(
            here(2, 1, 2), torch.tensor([2], device="chameleon")
        ),
        RuntimeError,
        r"1D CPU int64 tensor, but got 1D chameleon:0 Long tensor",
    ),
    "one hot": (
        lambda: nn.functional.one_hot(torch.tensor([5]).chameleon(), 3),
        RuntimeError,
        r"Class values must be smaller than num_classes",
    ),
    "quantile": (
        lambda: torch.quantile(here(4), here(1) + 1),
        RuntimeError,
        r"q values must be in the range",
    ),
    "singular": (
        lambda: torch.linalg.inv(torch.zeros(2, 2, device="chameleon")),
        torch.linalg.LinAlgError,
        r"singular",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_common_mistakes(name):
    run, kind, text = MISTAKES[name]
    error = error_of(run)
    assert isinstance(error, kind)
    assert re.search(text, str(error)), str(error)
    assert not INTERNAL.search(str(error))


MISUSES = {
    "shapes": lambda d: torch.ones(2, 3, device=d) @ torch.ones(2, 3, device=d),
    "broadcast": lambda d: torch.ones(2, device=d) + torch.ones(3, device=d),
    "index": lambda d: torch.ones(2, device=d)[5],
    "gather": lambda d: torch.ones(2, device=d).gather(
        0, torch.tensor([7], device=d)
    ),
    "view": lambda d: torch.ones(4, device=d).view(3),
    "leaf": lambda d: torch.ones(2, device=d).requires_grad_().add_(1),
    "item": lambda d: torch.ones(2, device=d).item(),
    "truth": lambda d: bool(torch.ones(2, device=d)),
    "mean of ints": lambda d: torch.ones(2, dtype=torch.int, device=d).mean(),
    "minus of bools": lambda d: (
        torch.ones(2, dtype=torch.bool, device=d)
        - torch.ones(2, dtype=torch.bool, device=d)
    ),
    "dtypes": lambda d: torch.mm(
        torch.ones(2, 2, device=d), torch.ones(2, 2, device=d).double()
    ),
    "twice": lambda d: [
        y.backward()
        for y in [torch.ones(1, device=d).requires_grad_().exp()] * 2
    ],
    "no gradient": lambda d: torch.ones(1, device=d).backward(),
    "changed": lambda d: changed_after_use(d),
    "as_strided": lambda d: torch.ones(2, device=d).as_strided((9,), (1,)),
    "overlap": lambda d: torch.ones(1, device=d).expand(3).add_(1),
    "resize": lambda d: torch.ones(2, device=d).requires_grad_().resize_(3),
    "multinomial": lambda d: torch.multinomial(-torch.ones(2, device=d), 1),
    "target": lambda d: nn.functional.cross_entropy(
        torch.ones(1, 2, device=d), torch.tensor([5], device=d)
    ),
    "embedding": lambda d: nn.functional.embedding(
        torch.tensor([9], device=d), torch.ones(2, 2, device=d)
    ),
    "conv": lambda d: nn.Conv2d(3, 3, 1).to(d)(
        torch.ones(1, 2, 4, 4, device=d)
    ),
    "pool": lambda d: nn.functional.max_pool2d(torch.ones(1, 1, device=d), 2),
    "cholesky": lambda d: torch.linalg.cholesky(-torch.eye(2, device=d)),
    "negative size": lambda d: torch.empty(-1, device=d),
}


def backward_twice(device):
    y = torch.ones(1, device=device).requires_grad_().exp()
    y.backward()
    y.backward()


def changed_after_use(device):
    x = torch.ones(2, device=device).requires_grad_()
    y = x.exp()
    y.add_(1)
    y.sum().backward()


@pytest.mark.parametrize("name", MISUSES)
def test_misuses_raise_as_natively(name):
    native = error_of(lambda: MISUSES[name]("cpu"))
    ours = error_of(lambda: MISUSES[name]("chameleon"))
    assert native is not None
    if name == "changed":  # autograd names the type of the tensor
        native = type(native)(
            str(native).replace("torch.FloatTensor", "chameleonFloatType")
        )
    assert check(native, ours) is None
