"""Scripts that say "cuda", under torchrun on two ranks, in a third of memory.

Natively they run on the CPU with gloo. Each rank prints the same then.
"""

import json
import os
import subprocess
import sys

import pytest
from support import torchrun
from test_cuda_scripts import KIB, RUN, SCRIPTS

RANKS = 2
HANGS_S = 300
# Not every script makes its device the current one.
RUN_OF_RANK = RUN.replace(
    "swap_stats()", "swap_stats(int(__import__('os').environ['LOCAL_RANK']))"
)


def case(name, *arguments, budget):
    """`budget` in KiB is about a third of what a rank has live at a time."""
    return pytest.param(
        [str(SCRIPTS / f"{name}.py"), *arguments],
        budget * KIB,
        id="-".join([name, *(a.lstrip("-") for a in arguments)]),
    )


CASES = [
    case("multigpu_torchrun", budget=1726),
    case("mingpt_ddp", budget=2614),
    case("fsdp2_train", budget=2220),
    case("fsdp2_train", "--mixed-precision", budget=1398),
    case("tensor_parallel", budget=1125),
]


def printed_by(command, folder, **environment):
    """What each rank prints: its lines on stdout, and on stderr."""
    folder.mkdir()
    logs = folder / "logs"
    done = subprocess.run(
        torchrun(RANKS, "--log-dir", logs, "--redirects", "3", *command),
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        timeout=HANGS_S,
        capture_output=True,
        text=True,
        check=False,
    )
    printed = [
        [path.read_text() for path in sorted(logs.rglob(f"{rank}/std*.log"))]
        for rank in range(RANKS)
    ]
    assert done.returncode == 0, (done.stderr, printed)
    # stderr.log is before stdout.log.
    errors, output = zip(*printed, strict=True)
    lines = [sorted(text.splitlines()) for text in output]
    assert all(lines)
    return lines, errors


@pytest.mark.slow
@pytest.mark.parametrize(("command", "budget"), CASES)
def test_losses_are_the_cpu_s(command, budget, tmp_path):
    expected, _ = printed_by(command, tmp_path / "cpu")
    ours = [
        sys.executable,
        "-c",
        RUN_OF_RANK,
        "--budget",
        str(budget),
        *command,
    ]
    found, words = printed_by(["--no-python", *ours], tmp_path / "run")
    assert found == expected
    for text in words:
        (line,) = (x for x in text.splitlines() if x.startswith('{"'))
        stats = json.loads(line)
        assert stats["hbm_budget"] == budget
        assert stats["peak_resident_bytes"] <= budget
        assert stats["peak_logical_bytes"] > 2.9 * budget
        assert stats["evictions"] > 0


# The one that is quick, as a user says it.
@pytest.mark.parametrize(
    ("command", "environment"),
    [
        (["-m", "torch_chameleon", "run", "--budget", "2MiB"], {}),
        pytest.param(
            [],
            {"CHAMELEON_AS_CUDA": "1", "CHAMELEON_HBM_BUDGET": "2MiB"},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["run", "variable"],
)
def test_as_a_user_says_it(command, environment, tmp_path):
    if not command:
        pytest.importorskip(
            "torch_chameleon_autoload",
            reason="torch_chameleon is not installed",
        )
    script = str(SCRIPTS / "mingpt_ddp.py")
    expected, _ = printed_by([script], tmp_path / "cpu")
    found, _ = printed_by([*command, script], tmp_path / "ours", **environment)
    assert found == expected
