"""diffusers' group offload: groups of layers come to the device in turns.

It gives parameters other data, `p.data = p.data.to(device)`, and with streams
copies ahead of the layers that compute.
"""

import pytest
import torch
from support import same_bits
from torch import nn

hooks = pytest.importorskip(
    "diffusers.hooks", reason="diffusers is not installed"
)
pytestmark = pytest.mark.filterwarnings("ignore")

BLOCKS = {"offload_type": "block_level", "num_blocks_per_group": 2}
LEAVES = {"offload_type": "leaf_level"}
SINGLE = {**BLOCKS, "num_blocks_per_group": 1}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(32, 32), nn.LayerNorm(32)

    def forward(self, x):
        return x + self.norm(self.layer(x)).relu()


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.last = nn.Linear(32, 8)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.last(x)


@pytest.mark.parametrize(
    "how",
    [
        BLOCKS,
        {**SINGLE, "use_stream": True},
        LEAVES,
        {**LEAVES, "use_stream": True},
        {**LEAVES, "use_stream": True, "low_cpu_mem_usage": True},
        {**LEAVES, "use_stream": True, "record_stream": True},
        {**LEAVES, "non_blocking": True},
    ],
)
@torch.no_grad()
def test_every_setting(how):
    torch.manual_seed(0)
    native = Network().eval()
    torch.manual_seed(0)
    ours = Network().eval()
    hooks.apply_group_offloading(
        ours, torch.device("chameleon"), torch.device("cpu"), **how
    )
    x = torch.ones(4, 32)
    for _ in range(2):
        assert same_bits(ours(x.to("chameleon")), native(x))
