"""torch.masked's tensors, a wrapper subclass: results, masks and gradients."""

import warnings

import pytest
import torch
from torch.masked import masked_tensor
from torch.masked.maskedtensor.binary import BINARY_NAMES
from torch.masked.maskedtensor.reductions import REDUCE_NAMES
from torch.masked.maskedtensor.unary import UNARY_NAMES

from conformance.harness.suite import Suite

PAGERS = ("never", "all")
SECOND = {"clamp": (0.2, 0.7), "clip": (0.2, 0.7), "pow": (2,)}
INTEGERS = "bitwise_"


def made(device, name, seed):
    draws = torch.Generator().manual_seed(seed)
    mask = torch.tensor([[1, 0, 1, 1], [0, 1, 1, 0]], dtype=torch.bool)
    if name.startswith(INTEGERS):
        data = torch.randint(4, mask.shape, generator=draws)
    else:
        data = torch.rand(mask.shape, generator=draws)
    if name == "all":
        data = data > 0.5
    grad = data.is_floating_point()
    return masked_tensor(data.to(device), mask.to(device), requires_grad=grad)


def parts(tensor):
    if isinstance(tensor, torch.masked.MaskedTensor):
        # What is masked out is anything.
        mask = tensor.get_mask()
        return tensor.get_data().masked_fill(~mask, 0), mask
    return tensor


def call(name):
    def action(device):
        first = made(device, name, 0)
        operands = [first]
        if name in BINARY_NAMES:
            operands.append(made(device, name, 1))
        result = getattr(torch, name)(*operands, *SECOND.get(name, ()))
        gradients = []
        if result.requires_grad:
            result.sum().backward()
            gradients = [parts(o.grad) for o in operands]
        return parts(result), gradients

    return action


@pytest.mark.parametrize("name", [*UNARY_NAMES, *BINARY_NAMES, *REDUCE_NAMES])
def test_function(name):
    suite = Suite("masked")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        suite.case(name, "forward", torch.float32, [call(name)], PAGERS)
    suite.verify()
