"""torch's own lists of what autocast does to which op, as calls."""

import torch
from torch import nn


def listed(lists):
    """(name, function, args, kwargs) of every entry of a test list."""
    for entries in vars(lists).values():
        for name, *rest in entries:
            kwargs = rest[-1] if isinstance(rest[-1], dict) else {}
            args = rest[0] if isinstance(rest[0], tuple) else tuple(rest[:2])
            modules = (torch, torch._C._nn, nn.functional)
            if name.startswith("__"):
                modules = (torch.Tensor,)
            for module in modules:
                if hasattr(module, name):
                    yield name, getattr(module, name), args, kwargs
                    break
