"""Where torch itself treats device "cpu" apart from all others.

There bits on the physical cpu differ from plain CPU tensors' as CUDA's would;
here is what they are equal to. Said in python/docs/limits.md.
"""

import torch
from support import same_bits
from torch.nn import functional
from torch.optim import swa_utils


def test_derivative_of_group_norm_in_channels_last():
    """On all devices but the CPU torch makes its operands contiguous."""

    def operands():
        draws = torch.Generator().manual_seed(0)
        x, grad = (
            torch.randn(2, 8, 5, 5, generator=draws).to(
                memory_format=torch.channels_last
            )
            for _ in range(2)
        )
        return x, grad, torch.randn(8, generator=draws)

    def derivatives(device):
        x, grad, weight = (each.to(device) for each in operands())
        sources = x.requires_grad_(), weight.requires_grad_()
        y = functional.group_norm(x, 4, weight)
        return torch.autograd.grad(y, sources, grad)

    x, grad, weight = operands()
    _, mean, scale = torch.native_group_norm(x, weight, None, 2, 8, 25, 4, 1e-5)
    contiguous = torch.ops.aten.native_group_norm_backward(
        grad.contiguous(),
        x.contiguous(),
        mean,
        scale,
        *(weight, 2, 8, 25, 4, [True, True, False]),
    )
    for cpu, ours, other in zip(
        derivatives("cpu"), derivatives("chameleon"), contiguous, strict=False
    ):
        assert not same_bits(ours, cpu)
        assert same_bits(ours, other)
        torch.testing.assert_close(ours.cpu(), cpu)


def test_order_of_sums_in_double_backward(fresh):
    """The engine gives each device but the CPU a thread, which counts anew.

    What is recorded last runs first, by a number that each thread counts for
    itself: a CPU backward on a thread of its own adds in the same order.
    """
    code = """
import threading, torch, torch_chameleon

def here(y, x):
    return torch.autograd.grad(y, x, create_graph=True)[0]

def on_a_thread(y, x):
    found = []
    run = threading.Thread(target=lambda: found.append(here(y, x)))
    run.start()
    run.join()
    return found[0]

def second_derivative(device, differentiate):
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(1000, generator=draws).to(device).requires_grad_()
    for _ in range(100):
        x.clone()
    y = (x.exp() * x.sin()).sum() + (x.cos() * x).sum()
    first = differentiate(y, x)
    (first * first * x.sin()).sum().backward()
    return x.grad.cpu()

plain = second_derivative("cpu", here)
ours = second_derivative("chameleon", here)
near = (ours - plain).abs().max() < 1e-5 * plain.abs().max()
print(ours.equal(plain), near.item(),
      ours.equal(second_derivative("cpu", on_a_thread)))
"""
    assert fresh(code, CHAMELEON_PHYSICAL_DEVICE="cpu") == "False True True"


def test_averaged_model():
    """On the CPU it is a loop of another formula; elsewhere one list op."""

    def parameters(device):
        draws = torch.Generator().manual_seed(0)
        model = torch.nn.Linear(30, 7)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(generator=draws)
        model.to(device)
        averaged = swa_utils.AveragedModel(model)
        averages = [parameter.clone() for parameter in model.parameters()]
        for count in range(4):
            with torch.no_grad():
                for parameter in model.parameters():
                    noise = torch.randn(parameter.shape, generator=draws)
                    parameter.add_(noise.to(device))
                # What torch does on CUDA.
                torch._foreach_lerp_(
                    averages, list(model.parameters()), 1 / (count + 1)
                )
            averaged.update_parameters(model)
        return list(averaged.module.parameters()), averages

    (cpu, as_on_cuda), (ours, _) = parameters("cpu"), parameters("chameleon")
    assert not all(map(same_bits, ours, cpu))
    assert all(map(same_bits, ours, as_on_cuda))
    for one, other in zip(ours, cpu, strict=True):
        torch.testing.assert_close(one.cpu(), other)
