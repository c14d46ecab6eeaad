"""Values that do not exist, under plan: what a script sees in their place."""

import pathlib

import pytest
from torch_chameleon.plan.process import run_script
from torch_chameleon.plan.script import Run

# Two steps, and what a script does before them.
BEFORE = """
import torch
{}
net = torch.nn.Linear(8, 8).to("cuda")
optimizer = torch.optim.SGD(net.parameters())
for step in range(2):
    net(torch.ones(2, 8, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def run_text(tmp_path, monkeypatch):
    """Runs a script on a simulated card, with room for everything."""
    monkeypatch.chdir(tmp_path)

    def run(text, **given):
        pathlib.Path("train.py").write_text(text)
        (tmp_path / "run").mkdir()
        usual = {"gpu": "rtx4090", "budgets": [None], "steps": 2}
        return run_script(
            Run(script="train.py", arguments=[], **(usual | given)),
            tmp_path / "run",
        )

    return run


# ---- the card --------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "name", "capability", "processors", "memory_gib"),
    [
        ("rtx4090", "NVIDIA GeForce RTX 4090", (8, 9), 128, 24),
        (
            "base=v100-32gb, memory=16GiB",
            "Tesla V100-SXM2-32GB",
            (7, 0),
            80,
            16,
        ),
    ],
)
def test_the_card_is_the_one_that_was_asked_about(
    run_text, gpu, name, capability, processors, memory_gib
):
    is_new = capability >= (8, 0)
    text = f"""
found = torch.cuda.get_device_properties(0)
assert found.name == torch.cuda.get_device_name() == {name!r}
assert (found.major, found.minor) == {capability}
assert torch.cuda.get_device_capability() == {capability}
assert found.multi_processor_count == {processors}
assert found.warp_size == 32
free, total = torch.cuda.mem_get_info()
assert 0.97 * {memory_gib << 30} < total <= {memory_gib << 30}
assert found.total_memory == total == torch.chameleon.mem_get_info()[1]
assert torch.accelerator.get_memory_info()[1] == total
held = torch.ones(1 << 20, device="cuda")
assert torch.cuda.mem_get_info() == (free - (4 << 20), total)
assert torch.cuda.is_bf16_supported()
assert torch.cuda.is_bf16_supported(including_emulation=False) == {is_new}
assert torch.cuda.is_tf32_supported() == {is_new}
"""
    assert run_text(BEFORE.format(text), gpu=gpu)["points"]
