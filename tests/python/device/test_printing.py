"""Printed tensors are CUDA's to the last line break, but for the name."""

import pytest
import torch
from torch import _tensor_str as printing

SHAPES = [(0,), (0, 3), (3, 0), (2, 0, 4), (), (1,), (3,), (13,), (2, 2, 2)]
SHAPES += [(2, 3), (40, 50)]
OPTIONS = [{}, {"edgeitems": 0, "threshold": 2}, {"linewidth": 30}]
OPTIONS += [{"precision": 2, "sci_mode": True}]
DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "bool"]
DTYPES += ["int64", "complex64", "complex128", "float8_e5m2", "uint16"]


def as_on_cuda(tensor):
    """What torch would print if a CPU tensor were on cuda:0."""
    add_suffixes = printing._add_suffixes

    def added(text, suffixes, indent, force_newline):
        suffixes = ["device='cuda:0'", *suffixes]
        return add_suffixes(text, suffixes, indent, force_newline)

    printing._add_suffixes = added
    try:
        return repr(tensor)
    finally:
        printing._add_suffixes = add_suffixes


@pytest.mark.parametrize("name", DTYPES)
def test_every_shape(name):
    dtype = getattr(torch, name)
    for shape in SHAPES:
        count = torch.Size(shape).numel()
        native = (torch.arange(count) % 120).reshape(shape).to(dtype)
        for options in OPTIONS:
            with printing.printoptions(**printing.get_printoptions() | options):
                found = repr(native.to("chameleon"))
                assert found.replace("chameleon", "cuda") == as_on_cuda(native)


def test_what_else_is_said():
    def check(make):
        found = repr(make("chameleon")).replace("chameleon", "cuda")
        assert found == as_on_cuda(make("cpu"))

    check(lambda device: torch.ones(20, device=device, requires_grad=True) * 2)
    check(lambda device: torch.ones(7, device=device, requires_grad=True)[:0])
    check(lambda device: torch.nn.Parameter(torch.ones(0, 3, device=device)))
    check(lambda device: torch._efficientzerotensor((0, 3), device=device))
    check(
        lambda device: torch.ones(2, dtype=torch.cfloat, device=device).conj()
    )


def test_the_text_of_a_tensor_is_left_alone():
    class Named(torch.Tensor):
        pass

    Named.__name__ = "Named_device='cuda:0'"
    found = repr(torch.ones(2, device="chameleon").as_subclass(Named))
    assert found == "Named_device='cuda:0'([1., 1.], device='chameleon:0')"
