"""Trainers under torchrun leave the native bits with half of the memory.

Natively they train with gloo on the CPU, in as many processes. What trains is
python/examples; each rank takes its own device.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from support import ROOT, torchrun

RANKS = 2
TIMEOUT_S = 300


def run(command, folder, **environment):
    """Runs it in two processes and returns what they print."""
    done = subprocess.run(
        torchrun(RANKS, *command),
        cwd=folder,
        env={
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT / "python" / "examples"),
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIMEOUT_S,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


# Seconds each, most of them to import a trainer twice.
@pytest.mark.parametrize("library", ["accelerate", "transformers", "lightning"])
def test_two_ranks(library, tmp_path):
    pytest.importorskip(library, reason=f"{library} is not installed")
    driver = Path(__file__).parent / "trainer_of_rank.py"
    run([driver, library, tmp_path], tmp_path)
    ranks = [
        json.loads((tmp_path / f"{rank}.json").read_text())
        for rank in range(RANKS)
    ]
    for rank, results in enumerate(ranks):
        room, half, native = (
            results[how] for how in ("room", "half", "native")
        )
        assert torch.device(native["device"]).type == "cpu"
        for ours in (room, half):
            place = torch.device(ours["device"])
            assert place.type == "chameleon"
            assert place.index in (None, rank)  # Lightning's has only the type
            assert ours["digest"] == native["digest"]
            assert ours["resident"] <= 1
        assert room["evictions"] == 0
        assert half["evictions"] > 0
    first, second = ranks
    assert first["half"]["digest"] == second["half"]["digest"]
