"""Scripts that say "cuda", as they are, in a third of their memory.

Each of `cuda_scripts/` trains on the CPU and under `python -m torch_chameleon
run`, and prints the same: every loss, with every digit.
`plan` answers for each, in a figure or a sentence, and changes no file.
"""

import hashlib
import importlib.util
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

SCRIPTS = ROOT / "tests/integration/cuda_scripts"
KIB = 1 << 10
ANSWER_S = 30  # of a processor's time, for an answer of plan
HANGS_S = 300  # of anyone's: the machine may have other work
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
    script("vae", "--accel", budget=4380),
    script("super_resolution", budget=1100),
    script("siamese_network", budget=89_300, needs=["torchvision"]),
    script("neural_style", budget=5270, needs=["torchvision"]),
    script("time_sequence_prediction", budget=2890),
    script("seq2seq_translation", budget=2740),
    script("dit", budget=5450),
    script("actor_critic", budget=870),
    script("dqn", budget=350),
    script("multigpu_torchrun", budget=1410),
    script("gcn", budget=2310),
]

# Where there is no figure, what plan says instead.
ONE_PROCESS = {
    **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"},
    **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
}
SENTENCES = {
    "vae": (
        {},
        "vae.py trains on the CPU: Adam's parameters are there. Is it told to "
        "use the GPU, by --accel?",
    ),
    "gcn": (
        {},
        "NotImplementedError: aten::mm: a simulated device has no model of it "
        "for sparse tensors",
    ),
    "multigpu_torchrun": (
        ONE_PROCESS,
        "multigpu_torchrun.py trains in several processes (torch.distributed): "
        "say on how many GPUs, such as --gpus 8",
    ),
}


def new_folder(tmp_path, name):
    path = tmp_path / name
    path.mkdir()
    return path


def python(command, folder, **given):
    """A process with these arguments, in this folder, when it has ended."""
    patience = given.pop("timeout", None)
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        # Bits depend on the number of threads, and a loader's pinning thread
        # makes MKL use one.
        env={
            **os.environ,
            **{"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
            **given,
        },
        timeout=patience,
        capture_output=True,
        text=True,
        check=False,
    )


def trained(command, folder):
    """What a process prints; its last words on stderr."""
    done = python(command, folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr.splitlines()


def planned(command, folder, **given):
    """plan for the T4, which answers soon and leaves all files alone."""
    folders = folder, SCRIPTS
    before = [contents(each) for each in folders]
    begin = children_s()
    done = python(
        ["-m", "torch_chameleon", "plan", "--gpu", "t4", *command],
        folder,
        timeout=HANGS_S,
        **given,
    )
    assert children_s() - begin < ANSWER_S
    assert [contents(each) for each in folders] == before
    return done


def children_s():
    """Seconds that processes worked for this one and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def contents(folder):
    """Each file below, with its time and what is in it."""
    return {
        path: (
            path.stat().st_mtime_ns,
            path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts
    }


def has_figures(case):
    name = Path(case.values[0][0]).stem
    return name not in SENTENCES or len(case.values[0]) > 1


@pytest.mark.slow
@pytest.mark.parametrize(("command", "budget"), CASES)
def test_losses_are_the_cpu_s(command, budget, tmp_path):
    expected, _ = trained(command, new_folder(tmp_path, "cpu"))
    found, words = trained(
        ["-c", RUN, "--budget", str(budget), *command],
        new_folder(tmp_path, "run"),
    )
    assert found == expected
    stats = json.loads(words[-1])
    assert stats["hbm_budget"] == budget
    assert stats["peak_resident_bytes"] <= budget
    assert stats["peak_logical_bytes"] > 2.9 * budget
    assert stats["evictions"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "budget"), [case for case in CASES if has_figures(case)]
)
def test_plan_answers(command, budget, tmp_path):
    """What `run` holds at a time, the first steps hold too, about."""
    file = tmp_path / "plan.json"
    files = new_folder(tmp_path, "files")
    done = planned(["--json", str(file), *command], files)
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert told[2].startswith("  fits       yes, 12.9 GiB hold all of it")
    figures = json.loads(file.read_text())
    assert 2 * budget < figures["peak_bytes"] < 5 * budget
    assert figures["in_memory_ns"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", SENTENCES)
def test_plan_says_why_not(name, tmp_path):
    environment, sentence = SENTENCES[name]
    done = planned([str(SCRIPTS / f"{name}.py")], tmp_path, **environment)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_training_resumes(tmp_path):
    """From a snapshot of the CPU's, which plan leaves as it is."""
    command = [str(SCRIPTS / "multigpu_torchrun.py"), "--epochs"]
    cpu = new_folder(tmp_path, "cpu")
    trained([*command, "1"], cpu)
    run = shutil.copytree(cpu, tmp_path / "run")
    done = planned([*command, "3"], run)
    assert done.returncode == 0, done.stderr
    expected, _ = trained([*command, "3"], cpu)
    assert "Resuming training from snapshot at Epoch 1" in expected
    ours = ["-c", RUN, "--budget", str(1410 * KIB)]
    assert trained([*ours, *command, "3"], run)[0] == expected


def test_all_scripts_are_run():
    from test_cuda_scripts_on_ranks import CASES as ON_RANKS

    run = {Path(case.values[0][0]).name for case in CASES + ON_RANKS}
    assert run == {path.name for path in SCRIPTS.glob("*.py")}


def test_no_script_knows_of_the_device():
    for path in SCRIPTS.glob("*.py"):
        assert "chameleon" not in path.read_text()
