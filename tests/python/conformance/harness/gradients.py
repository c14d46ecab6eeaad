"""Gradients whose sums have the same order on every device.

Autograd runs first what was recorded last, by a number that each thread counts
for itself, and gives each device but the CPU a thread. So two orders are its
own on every such device, and with them the last bit of a sum:

- From several roots the device's thread starts at the first one, while the
  others are being queued. `gradients()` starts from one node that hands out
  all weights.
- What a backward pass records, a second one takes by the numbers of the
  device's thread, which have nothing to do with those of the forward pass.
  `in_order()` makes them larger, as they are on the CPU.
"""

import concurrent.futures
import functools

import torch

# More than any action records.
_NODES = 20_000


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weights, *roots):
        ctx.weights = weights
        return roots[0].new_zeros((), dtype=torch.float32)

    @staticmethod
    def backward(ctx, _):
        return None, *ctx.weights


def joined(roots, weights):
    """A scalar whose derivative by each root is its weight."""
    return _Joined.apply(tuple(weights), *roots)


def gradients(roots, sources, weights, *, create_graph=False):
    """torch.autograd.grad(), sources without a path to a root included."""
    return torch.autograd.grad(
        joined(roots, weights),
        sources,
        create_graph=create_graph,
        allow_unused=True,
    )


@functools.cache
def _count_on_device():
    """Lets the device's thread record nodes that nobody wants."""
    leaf = torch.zeros((), device="chameleon", requires_grad=True)

    def record(_):
        other = torch.zeros((), requires_grad=True)
        with torch.enable_grad():
            while other.clone().grad_fn._sequence_nr() < _NODES:
                pass

    leaf.register_hook(record)
    (leaf * 2).backward()


def in_order(action):
    """An action whose forward pass has smaller numbers than its backward."""

    @functools.wraps(action)
    def counted(device):
        _count_on_device()
        with concurrent.futures.ThreadPoolExecutor(1) as fresh:
            return fresh.submit(action, device).result()

    return counted
