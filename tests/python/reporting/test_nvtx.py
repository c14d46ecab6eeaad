"""Ranges for NVIDIA's tools, seen by a tool of our own."""

import pathlib
import shutil

import emulated_cuda
import pytest
from support import needs_testing, shared_library

pytestmark = needs_testing

HEADERS = emulated_cuda.cuda_headers()
TRAINING = """
import torch, torch_chameleon
from torch_chameleon import _testing, config
config.hbm_budget, config.oversubscription = 8 << 20, 8.0
layers = [torch.nn.Linear(256, 256) for _ in range(24)]
model = torch.nn.Sequential(*layers).to("chameleon")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(12):
    model(torch.rand(512, 256, device="chameleon")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
_testing.set_drop_stress("record", 0)
kept = torch.ones(1 << 16, device="chameleon") + 1
assert _testing.drop(kept)
torch_chameleon._C.evict(layers[0].weight)
(kept + 1).sum() + layers[0].weight.sum()
"""


@pytest.mark.skipif(
    shutil.which("cc") is None
    or HEADERS is None
    or not pathlib.Path(HEADERS, "nvtx3/nvToolsExt.h").is_file(),
    reason="needs a C compiler, cc, and NVTX's headers, which CUDA's bring",
)
def test_a_tool_sees_what_is_done(fresh, tmp_path):
    output = tmp_path / "ranges"
    source = pathlib.Path(__file__).with_name("nvtx_tool.c")
    tool = shared_library(source, tmp_path, f"-I{HEADERS}")
    tools = {"NVTX_INJECTION64_PATH": str(tool)}
    fresh(TRAINING, NVTX_TOOL_OUTPUT=str(output), **tools)
    lines = dict(line.split(": ") for line in output.read_text().splitlines())
    assert int(lines.pop("open")) in (0, 1)  # a plan may be in the making
    assert {"fetch", "evict", "run again"} <= lines.keys()
    assert lines.keys() <= {
        *("fetch", "evict", "compact", "run again", "follow the plan", "plan"),
        *("wait for bytes", "wait for other ops", "wait for the device"),
        *("commit device memory", "allocate host memory"),
    }
