"""Lists of tensors whose ops wait for each other."""

import torch
from support import same_bits
from torch_chameleon import _C, _testing

COUNT = 8  # elements of a list, of 128 KiB each
SHAPE = (128, 256)


def tensors(device, seed=0, count=COUNT, dtype=torch.float32):
    draws = torch.Generator().manual_seed(seed)
    return [
        torch.rand(SHAPE, generator=draws).add_(0.5).to(dtype).to(device)
        for _ in range(count)
    ]


def put_off(seed=0):
    """Tensors of which some are on the host, and what mul_ would make."""
    xs = tensors("chameleon", seed)
    _C.evict_all(0)
    torch._foreach_mul_(xs, 3.0)
    assert _testing.deferred_op_count() == 1
    return xs, [x.mul(3.0) for x in tensors("cpu", seed)]


def all_same(xs, ys):
    return len(xs) == len(ys) and all(map(same_bits, xs, ys))
