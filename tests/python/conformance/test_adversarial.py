"""The same cases while the cpu runtime behaves at its most inconvenient.

The behaviour is the whole process's, so each runs in one of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import ADVERSARIES


def sample_under(adversary, part):
    """Runs the default sample, or a part of it."""
    folder = Path(__file__).parent
    environment = {
        "CONFORMANCE_ADVERSARY": adversary,
        "CONFORMANCE_PART": part,
        "CONFORMANCE_COUNTS": "",
    }
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-m", "not slow"),
            *("-k", "test_sample_of", "-p", "no:randomly", str(folder)),
            f"--ignore={__file__}",
        ],
        env={**os.environ, **environment},
        cwd=folder.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_sample_with_an_adversary():
    sample_under(ADVERSARIES[-1], "1/40")


@pytest.mark.slow
@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_with_an_adversary(adversary):
    sample_under(adversary, "1/1")
