"""Scripts that say "cuda", as they are, in a third of their memory.

Each of `cuda_scripts/` trains on the CPU and under `python -m torch_chameleon
run`, and prints the same: every loss, with every digit.
`plan` answers for each.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).with_name("cuda_scripts")
KIB = 1 << 10
# The command, and a word on the memory when the script has ended.
RUN = """
import atexit, json, sys
import torch_chameleon
from torch_chameleon.run import main

@atexit.register
def tell():
    print(json.dumps(torch_chameleon.swap_stats()), file=sys.stderr)

sys.exit(main(sys.argv[1:]))
"""


_TRAINER = ["transformers", "accelerate"]


def script(name, *arguments, budget, needs=()):
    """A case: `budget` in KiB is about a third of what is live at a time."""
    missing = [
        library
        for library in needs
        if importlib.util.find_spec(library) is None
    ]
    return pytest.param(
        [str(SCRIPTS / f"{name}.py"), *arguments],
        budget * KIB,
        id="-".join([name, *(a.lstrip("-") for a in arguments)]),
        marks=pytest.mark.skipif(
            bool(missing), reason=f"not installed: {', '.join(missing)}"
        ),
    )


CASES = [
    script("mnist", budget=9300),
    script("word_language_model", budget=2900),
    script("dcgan", budget=2020),
    script("imagenet", budget=87_500, needs=["torchvision"]),
    script("imagenet", "--gpu", "0", budget=87_500, needs=["torchvision"]),
    script("wgan_tensor_types", budget=1660),
    script("nanogpt", budget=9950),
    script("nanogpt", "--dtype=bfloat16", budget=8440),
    script("torchvision_classification", budget=15_300, needs=["torchvision"]),
    script("timm_classification", budget=5720, needs=["timm"]),
    script(
        *("timm_classification", "--amp-dtype", "bfloat16"),
        budget=4390,
        needs=["timm"],
    ),
    script("run_clm", budget=8350, needs=_TRAINER),
    script("run_clm_no_trainer", budget=8350, needs=_TRAINER),
    script("peft_lora_clm", budget=4600, needs=[*_TRAINER, "peft"]),
    script("lightning_autoencoder", budget=3160, needs=["lightning"]),
]


def trained(command):
    """What a process prints; its last words on stderr."""
    done = subprocess.run(
        [sys.executable, *command],
        # Bits depend on the number of threads, and a loader's pinning thread
        # makes MKL use one.
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(("command", "budget"), CASES)
def test_losses_are_the_cpu_s(command, budget):
    expected, _ = trained(command)
    found, words = trained(["-c", RUN, "--budget", str(budget), *command])
    assert found == expected
    stats = json.loads(words[-1])
    assert stats["hbm_budget"] == budget
    assert stats["peak_resident_bytes"] <= budget
    assert stats["peak_logical_bytes"] > 2.9 * budget
    assert stats["evictions"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("command", "budget"), CASES)
def test_plan_answers(command, budget, tmp_path):
    """What `run` holds at a time, the first steps hold too, about."""
    before = {path: path.stat() for path in SCRIPTS.iterdir()}
    file = tmp_path / "plan.json"
    told, _ = trained(
        [
            *("-m", "torch_chameleon", "plan", "--gpu", "t4"),
            *("--json", str(file), *command),
        ]
    )
    assert told[2].startswith("  fits       yes, 12.9 GiB hold all of it")
    figures = json.loads(file.read_text())
    assert 2 * budget < figures["peak_bytes"] < 5 * budget
    assert figures["in_memory_ns"] > 0
    assert {path: path.stat() for path in SCRIPTS.iterdir()} == before


def test_all_scripts_are_run():
    run = {Path(case.values[0][0]).name for case in CASES}
    assert run == {path.name for path in SCRIPTS.glob("*.py")}


def test_no_script_knows_of_the_device():
    for path in SCRIPTS.glob("*.py"):
        assert "chameleon" not in path.read_text()
