"""The same cases while the cpu runtime behaves at its most inconvenient.

The behaviour is the whole process's, so each runs in one of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import ADVERSARIES, ROOT

from conformance.harness import counting

PARTS = 8
DATABASES = ("ops", "modules", "optimizers", "transforms")


def sample_under(adversary, part, folder):
    """Runs a part of the default sample."""
    here, counts = Path(__file__).parent, folder / "counts.json"
    environment = {
        "CHAMELEON_TEST_ADVERSARY": adversary,
        "CONFORMANCE_PART": part,
        "CONFORMANCE_COUNTS": str(counts),
    }
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-m", "sample"),
            *(str(here / f"test_{name}.py") for name in DATABASES),
        ],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counting.count_all_of(counts, "with an adversary", adversary)


@pytest.mark.sample
def test_with_an_adversary_at_times(tmp_path):
    sample_under(ADVERSARIES[-1], "1/40", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(1, 1 + PARTS))
@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_with_an_adversary(adversary, part, tmp_path):
    sample_under(adversary, f"{part}/{PARTS}", tmp_path)
