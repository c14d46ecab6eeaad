"""Helpers of the tests in both folders."""

import torch
import torch_chameleon

MIB = 1 << 20


def packed(tensor):
    """All elements in a row; contiguous() keeps odd strides of one element."""
    return tensor.flatten().clone(memory_format=torch.contiguous_format)


def same_bits(a, b):
    """Whether two tensors, wherever they are, have the same bits."""
    a, b = a.detach().cpu(), b.detach().cpu()
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(
        packed(a).view(torch.uint8),
        packed(b).view(torch.uint8),
    )


def moved(action, device=0):
    """Counters that an action adds to: {name: difference}."""
    torch.chameleon.synchronize()
    before = torch_chameleon.swap_stats(device)
    action()
    torch.chameleon.synchronize()
    after = torch_chameleon.swap_stats(device)
    return {key: after[key] - before[key] for key in after}
