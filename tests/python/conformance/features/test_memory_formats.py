"""channels_last through nets, forward and backward: strides as natively."""

import pytest
import torch
from torch import nn

from conformance.harness.pagers import PAGERS
from conformance.harness.suite import Suite

LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 1, groups=2)

    def forward(self, x):
        return torch.relu(x + self.second(torch.relu(self.norm(self.first(x)))))


NETS = {
    "residual": lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), Residual(4), nn.MaxPool2d(2)
    ),
    "upsampling": lambda: nn.Sequential(
        nn.ConvTranspose2d(3, 4, 3, stride=2),
        nn.SiLU(),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.PixelShuffle(2),
    ),
    "group_norm": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4)),
    "depthwise": lambda: nn.Sequential(
        nn.Conv2d(3, 6, 3, groups=3, dilation=2),
        nn.Hardswish(),
        nn.AvgPool2d(2, count_include_pad=False),
        nn.AdaptiveAvgPool2d(2),
        nn.Dropout2d(0.3),
    ),
    "padding": lambda: nn.Sequential(
        nn.ReflectionPad2d(1),
        nn.Conv2d(3, 4, 2, padding="same", padding_mode="circular"),
        nn.PReLU(4),
        nn.InstanceNorm2d(4, affine=True),
        nn.ZeroPad2d(2),
    ),
    "volumes": lambda: nn.Sequential(
        nn.Conv3d(3, 4, 2), nn.BatchNorm3d(4), nn.LeakyReLU(), nn.MaxPool3d(2)
    ),
}


def images(name, device, memory_format):
    torch.manual_seed(1)
    shape = (2, 3, 6, 6, 6) if name == "volumes" else (2, 3, 8, 8)
    x = torch.randn(shape).to(device)
    return x.to(memory_format=memory_format).requires_grad_()


def through(name, *, weights, inputs):
    """A net whose weights, inputs, or both are channels-last."""

    def action(device):
        torch.manual_seed(0)
        made = NETS[name]()
        last = LAST[5 if name == "volumes" else 4]
        made = made.to(device)
        if weights:
            made = made.to(memory_format=last)
        x = images(name, device, last if inputs else torch.contiguous_format)
        seen = []
        for layer in made:
            layer.register_forward_hook(lambda *a: seen.append(a[2]))
        result = made(x)
        result.square().sum().backward()
        return seen, x.grad, [(p, p.grad) for p in made.parameters()]

    return action


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("pager", PAGERS)
def test_nets(name, pager):
    suite = Suite("memory_format")
    suite.case(
        name,
        "train",
        torch.float32,
        [
            through(name, weights=weights, inputs=inputs)
            for weights, inputs in ((True, True), (True, False), (False, True))
        ],
        [pager],
    )
    suite.verify()


def conversions(device):
    x = torch.randn(2, 3, 4, 5).to(device)
    last = x.to(memory_format=torch.channels_last)
    return (
        last,
        last.contiguous(),
        last.clone(),
        last.clone(memory_format=torch.contiguous_format),
        last.to(torch.float64),
        torch.empty_like(last).zero_(),
        torch.rand_like(last),
        last.to("cpu", copy=True).to(device, copy=True),
        last.new_zeros(last.shape),
        torch.zeros(2, 3, 4, 5, device=device).copy_(last),
        last.contiguous(memory_format=torch.channels_last),
        [t.is_contiguous(memory_format=torch.channels_last) for t in (x, last)],
    )


def elementwise(device):
    """Results take the strides of their operands, broadcasting included."""
    torch.manual_seed(0)
    last = torch.randn(2, 3, 4, 5).to(device)
    last = last.to(memory_format=torch.channels_last)
    plain = torch.randn(2, 3, 4, 5).to(device)
    row = torch.randn(3, 1, 1).to(device)
    return (
        last + plain,
        plain + last,
        last * row,
        row * last,
        last.transpose(1, 2) + 1,
        torch.where(last > 0, last, plain),
        torch.cat([last, last], 1),
        torch.stack([last, last]),
        last[:, 1:].relu(),
        last.sum(1, keepdim=True),
        last.flip(2),
        torch.addcmul(last, plain, last),
    )


def gradients_keep_layouts(device):
    """Accumulated gradients match their parameters' strides."""
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 4, 3).to(device).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 6, 6).to(device)
    for _ in range(2):
        conv(x).sum().backward()
    optimizer = torch.optim.Adam(conv.parameters(), foreach=True)
    optimizer.step()
    state = [dict(optimizer.state[p]) for p in conv.parameters()]
    return [(p, p.grad) for p in conv.parameters()], state


@pytest.mark.parametrize("pager", PAGERS)
@pytest.mark.parametrize(
    "case", [conversions, elementwise, gradients_keep_layouts]
)
def test_case(case, pager):
    suite = Suite("memory_format")
    suite.case(case.__name__, "run", torch.float32, [case], [pager])
    suite.verify()
