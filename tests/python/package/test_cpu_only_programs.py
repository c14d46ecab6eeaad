"""A program that only imports the package sees the torch that it knows."""

import os
import subprocess
import sys
from pathlib import Path

import cpu_only_programs
import pytest

# What an accelerator changes in torch itself, CUDA's too. limits.md says so.
CHANGED = {
    "activities": "the profiler knows one kind more",
    "capturable_optimizer": "the refusal lists the device",
    "default_backend": "torch asks which backend serves the accelerator",
    "fully_sharded": "without a mesh torch shards on the accelerator",
    "pinned_data_loader": "there is somebody to pin for",
    "pinned_memory": "there is somebody to pin for",
}


def seen(*arguments):
    script = Path(cpu_only_programs.__file__)
    lines = subprocess.run(
        [sys.executable, str(script), *arguments],
        env={**os.environ, "CHAMELEON_PHYSICAL_DEVICE": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    found = dict(line.split(" ", 1) for line in lines if " " in line)
    assert found.keys() == {x.__name__ for x in cpu_only_programs.PROGRAMS}
    return found


@pytest.mark.slow
def test_importing_changes_what_an_accelerator_changes():
    before, after = seen(), seen("import")
    assert {name for name in before if before[name] != after[name]} == set(
        CHANGED
    )
    assert before["data_parallel"].startswith("([], tensor(")
