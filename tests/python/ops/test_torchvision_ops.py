"""torchvision's C++ ops, loaded before and after this package."""

import subprocess
import sys

import pytest
import torch
from support import evicting, same_bits
from torchvision import ops


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def boxes(count):
    draws = torch.Generator().manual_seed(0)
    corner = torch.rand(count, 2, generator=draws) * 8
    size = torch.rand(count, 2, generator=draws) * 7 + 1
    return torch.cat([corner, corner + size], 1)


def regions(count):
    image = torch.arange(count, dtype=torch.float32).remainder(2)[:, None]
    return torch.cat([image, boxes(count)], 1)


FEATURES = draw(2, 8, 16, 16)
SCORES = torch.rand(20, generator=torch.Generator().manual_seed(1))

CALLS = {
    "nms": (lambda b, s: ops.nms(b, s, 0.3), boxes(20), SCORES),
    "batched_nms": (
        lambda b, s, c: ops.batched_nms(b, s, c, 0.3),
        boxes(20),
        SCORES,
        torch.arange(20) % 3,
    ),
    "roi_align": (
        lambda f, b: ops.roi_align(f, b, 3, 1.0, 2, True),
        FEATURES,
        regions(20),
    ),
    "roi_align_adaptive": (
        lambda f, b: ops.roi_align(f, b, (2, 4), 0.5),
        FEATURES,
        regions(20),
    ),
    "roi_pool": (
        lambda f, b: ops.roi_pool(f, b, 3),
        FEATURES,
        regions(20),
    ),
    "ps_roi_align": (
        lambda f, b: ops.ps_roi_align(f, b, 2),
        FEATURES,
        regions(20),
    ),
    "ps_roi_pool": (
        lambda f, b: ops.ps_roi_pool(f, b, 2),
        FEATURES,
        regions(20),
    ),
    "deform_conv2d": (
        ops.deform_conv2d,
        FEATURES,
        draw(2, 18, 14, 14, seed=1),
        draw(4, 8, 3, 3, seed=2),
        draw(4, seed=3),
    ),
    "deform_conv2d_masked": (
        lambda f, o, w, m: ops.deform_conv2d(f, o, w, mask=m, padding=1),
        FEATURES,
        draw(2, 18, 16, 16, seed=1),
        draw(4, 8, 3, 3, seed=2),
        draw(2, 9, 16, 16, seed=3),
    ),
}


def run(name, device):
    call, *given = CALLS[name]
    given = [x.detach().to(device) for x in given]
    if not name.endswith("nms"):
        for index, x in enumerate(given):
            x.requires_grad_(name.startswith("deform") or index == 0)
    result = call(*given)
    sources = [x for x in given if x.requires_grad]
    if not sources:
        return [result]
    return [result, *torch.autograd.grad(result.square().sum(), sources)]


@pytest.mark.parametrize("mode", ["never", "all"])
@pytest.mark.parametrize("name", CALLS)
def test_bits(name, mode):
    native = run(name, "cpu")
    with evicting(mode):
        ours = run(name, "chameleon")
    assert len(native) == len(ours)
    for one, other in zip(native, ours, strict=True):
        assert other.is_chameleon
        assert other.stride() == one.stride()
        assert same_bits(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["torchvision", "torch_chameleon"])
def test_order_of_imports(first):
    second = {"torchvision", "torch_chameleon"} - {first}
    code = f"""
import torch
import {first}
import {second.pop()}
from torchvision import ops
boxes = torch.tensor([[0, 0, 2, 2], [0, 0, 2, 3], [5, 5, 6, 6.]])
kept = ops.nms(boxes.to("chameleon"), torch.ones(3, device="chameleon"), 0.5)
print(kept.device.type, kept.tolist())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "chameleon [0, 2]"
