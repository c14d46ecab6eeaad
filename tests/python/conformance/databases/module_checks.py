"""What is done with one entry of the module database.

Each check makes actions from the entry's inputs, as in op_checks. Modules are
made on the CPU and moved, or made on the device: initial values are the same
bits either way.
"""

import copy

import torch
from torch.nn.parameter import UninitializedTensorMixin

from conformance.databases.op_checks import tensors
from conformance.harness.gradients import gradients, in_order, joined
from conformance.harness.placing import Placer

# Natively supported or not: what is refused must be refused alike.
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def inputs(info, dtype, training):
    torch.manual_seed(0)
    return info.module_inputs_func(
        info, "cpu", dtype, requires_grad=True, training=training
    )


def _made(info, given, dtype, device, placer):
    args, kwargs = placer(
        (given.constructor_input.args, given.constructor_input.kwargs)
    )
    torch.manual_seed(1)
    module = info.module_cls(*args, **kwargs)
    # Moving makes new buffers, where there is something to move; a copy has
    # new ones on every device.
    return copy.deepcopy(module.to(device=device, dtype=dtype))


def _weights(results, device):
    draws = torch.Generator().manual_seed(7)
    return [
        torch.rand(r.shape, dtype=torch.float64, generator=draws)
        .to(r.dtype)
        .to(device)
        for r in results
    ]


def _state(module):
    return {
        name: value
        for name, value in module.state_dict(keep_vars=True).items()
        if not isinstance(value, UninitializedTensorMixin)
    }


def _called(info, dtype, training, given, device):
    """A module on the device, its operands, and what it returns for them."""
    placer = Placer(device)
    module = _made(info, given, dtype, device, placer).train(training)
    operands = placer((given.forward_input.args, given.forward_input.kwargs))
    torch.manual_seed(2)
    return module, operands, module(*operands[0], **operands[1])


def _sources(module, operands):
    return [
        leaf
        for leaf in (*tensors(operands), *module.parameters())
        if leaf.requires_grad
    ]


def _run(info, dtype, training, given):
    def action(device):
        module, operands, results = _called(
            info, dtype, training, given, device
        )
        roots = [r for r in tensors(results) if r.requires_grad]
        if roots:
            joined(roots, _weights(roots, device)).backward()
        derived = [s.grad for s in _sources(module, operands)]
        return results, derived, operands, _state(module)

    return action


def train(info, dtype):
    """Forward and backward; the state is what training leaves."""
    for given in inputs(info, dtype, True):
        yield _run(info, dtype, True, given)


def evaluate(info, dtype):
    for given in inputs(info, dtype, False):
        yield _run(info, dtype, False, given)


def inference(info, dtype):
    """No graph at all: inference mode."""
    for given in inputs(info, dtype, False):

        def action(device, given=given):
            with torch.inference_mode():
                module, operands, results = _called(
                    info, dtype, False, given, device
                )
            return results, operands, _state(module)

        yield action


def double_backward(info, dtype):
    if not info.supports_gradgrad:
        return
    for given in inputs(info, dtype, True):

        @in_order
        def action(device, given=given):
            module, operands, results = _called(
                info, dtype, True, given, device
            )
            roots = [r for r in tensors(results) if r.requires_grad]
            sources = _sources(module, operands)
            if not roots or not sources:
                return results
            weights = _weights(roots, device)
            first = gradients(roots, sources, weights, create_graph=True)
            roots = [g for g in first if g is not None and g.requires_grad]
            if not roots:
                return first
            weights = _weights(roots, device)
            return first, gradients(roots, sources, weights)

        yield action


def made_on_device(info, dtype):
    """Initial values drawn on the device, in the module's own dtype."""
    for given in inputs(info, dtype, True):

        def action(device, given=given):
            args, kwargs = Placer(device)(
                (given.constructor_input.args, given.constructor_input.kwargs)
            )
            torch.manual_seed(1)
            with torch.device(device):
                module = info.module_cls(*args, **kwargs)
            return _state(module)

        yield action


def copied(info, dtype):
    """A deep copy, and a module that loads the state, compute the same."""
    for given in inputs(info, dtype, True)[:1]:

        def action(device, given=given):
            module, operands, _ = _called(info, dtype, False, given, device)
            twin = copy.deepcopy(module)
            twin.load_state_dict(module.state_dict())
            torch.manual_seed(2)
            return twin(*operands[0], **operands[1]), _state(twin)

        yield action


def channels_last(info, dtype):
    """Four- and five-dimensional inputs in channels-last strides."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    for given in inputs(info, dtype, True):
        shapes = [t.dim() for t in tensors(given.forward_input.args)]
        if not shapes or shapes[0] not in formats:
            continue

        def action(device, given=given, rank=shapes[0]):
            placer = Placer(device)
            module = _made(info, given, dtype, device, placer)
            module = module.to(memory_format=formats[rank])
            operands = placer(
                (given.forward_input.args, given.forward_input.kwargs)
            )
            first, *args = operands[0]
            first = first.detach().to(memory_format=formats[rank])
            first.requires_grad_()
            torch.manual_seed(2)
            results = module(first, *args, **operands[1])
            roots = [r for r in tensors(results) if r.requires_grad]
            if roots:
                joined(roots, _weights(roots, device)).backward()
            return results, first, first.grad, _state(module)

        yield action


CHECKS = {
    "train": train,
    "evaluate": evaluate,
    "inference": inference,
    "double_backward": double_backward,
    "made_on_device": made_on_device,
    "copied": copied,
    "channels_last": channels_last,
}
