"""Values that do not exist, under plan: what a script sees in their place."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from plan_scripts import HEAD, SCRIPTS
from plan_trials import BESIDE
from torch_chameleon.plan import arguments, report
from torch_chameleon.plan.process import ScriptError, run_script
from torch_chameleon.plan.script import Run


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
    assert run_text(BESIDE.format(text), gpu=gpu)["points"]


# ---- sizes -----------------------------------------------------------------


def test_lines_whose_sizes_depend_on_values_are_named(run_text):
    text = """
x = torch.randn(64, 8, device="cuda")
assert len(x[x > 0]) == 128
assert len(torch.where(x.argmax(-1) == 3)[0]) == 8
assert len(x.masked_select(x > 1)) == 128
"""
    result = run_text(BESIDE.format(text), share=0.25)
    assert result["sizes"] == {
        "unknown": ["train.py:5", "train.py:7"],
        "known": ["train.py:6"],
    }


@pytest.mark.parametrize(
    ("sizes", "share", "sentence"),
    [
        ({"unknown": ["a.py:3"]}, 1.0, "at a.py:3: at most this large, and so"),
        ({"unknown": ["a.py:3"]}, 0.25, "taken as 0.25 of the largest"),
        ({"known": ["a.py:4"]}, 1.0, "at a.py:4: taken as if each choice were"),
    ],
)
def test_the_answer_names_them(sizes, share, sentence):
    figures = {"sizes": sizes, "share": share}
    rows = report._sizes(figures)
    assert [name for name, _ in rows] == ["sizes"]
    assert sentence in rows[0][1]


@pytest.mark.parametrize("share", ["0", "-0.5", "1.5", "nan", "half"])
def test_a_share_that_is_none(share, tmp_path, capsys):
    script = tmp_path / "train.py"
    script.touch()
    with pytest.raises(SystemExit):
        arguments.parse(["--share", share, str(script)])
    wrong = f'"{share}" must be a fraction, more than 0 and at most 1'
    assert wrong in capsys.readouterr().err
    assert arguments.parse(["--share", "0.5", str(script)]).share == 0.5
    assert arguments.parse([str(script)]).share == 1.0


# ---- reads -----------------------------------------------------------------


def test_a_division_by_what_was_read_names_the_line(run_text):
    text = """
x = torch.randn(2, device="cuda")
mean = 1 / (x[0].item() - x[1].item())
"""
    with pytest.raises(ScriptError) as raised:
        run_text(BESIDE.format(text))
    assert "ZeroDivisionError" in str(raised.value)
    assert "read at train.py:5" in str(raised.value)


def test_zeros_that_are_copied_to_the_cpu_are_named(run_text):
    text = """
x = torch.randn(2, device="cuda")
for way in (lambda: x.cpu(), lambda: x.to("cpu").numpy()):
    assert way()[0] == 0
assert torch.empty(2).copy_(x)[0] == 0
torch.save(x, "x.pt")
chosen = torch.randn(8, 4, device="cuda").argmax(-1)
assert chosen.bincount().cpu()[0] == 2
"""
    result = run_text(BESIDE.format(text))
    assert result["reads"] == ["train.py:5", "train.py:7"]


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["(x > 99).any()", "x.cpu()[0]"])
def test_a_loop_that_waits_names_the_line(run_text, asked):
    text = f"""
x = torch.randn(2, device="cuda")
while not {asked}:
    pass
"""
    with pytest.raises(ScriptError, match=r"train.py:5 has read .* values"):
        run_text(BESIDE.format(text))


# ---- whole scripts ---------------------------------------------------------

PEAK = """
torch.cuda.synchronize()
import torch_chameleon
print("peak", torch_chameleon.swap_stats()["peak_logical_bytes"])
"""


def whole_peak(text, device):
    """The peak of all of a script, by hand on a device."""
    pathlib.Path("whole.py").write_text(text + PEAK)
    done = subprocess.run(
        [sys.executable, "-m", "torch_chameleon", "run", "whole.py"],
        env={**os.environ, "CHAMELEON_PHYSICAL_DEVICE": device},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"^peak (\d+)$", done.stdout, re.M)
    assert found, done.stderr
    return int(found[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_plan_is_what_the_whole_script_shows(run_text, name):
    text, share, device = SCRIPTS[name]
    planned = run_text(HEAD + text, share=share, steps=8)["points"][0]
    peak = whole_peak(HEAD + text, device)
    assert planned["peak_logical_bytes"] == pytest.approx(peak, rel=0.1)
