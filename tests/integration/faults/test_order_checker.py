"""Random tests while the cpu runtime checks the order of what is submitted.

Copies are late and kernels too, so that most of the work is pending when more
comes: two uses of the same bytes that no wait orders end the process. The
behaviour is the whole process's, so the tests run once more in one of its own.
Random programs (test_random_programs.py) and the C++ tests choose theirs
themselves.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import ADVERSARIES, ROOT, needs_testing

pytestmark = needs_testing

HERE = Path(__file__).parent
MOST_PENDING = "copies=on_await,compute_delay=8,seed=5"
RANDOM_TESTS = {
    "test_soak.py": "eight_threads or that_drop or streams",
    "test_threads.py": "",
    "test_stress.py": "evictions_at_any_moment",
}


def run(path, select, adversary):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-m", "not slow"),
            *(str(HERE / path), "-k", select),
        ],
        env={**os.environ, "CHAMELEON_TEST_ADVERSARY": adversary},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_order_under_threads():
    run("test_soak.py", RANDOM_TESTS["test_soak.py"], MOST_PENDING)


@pytest.mark.slow
@pytest.mark.parametrize("adversary", [*ADVERSARIES, MOST_PENDING])
@pytest.mark.parametrize("path", RANDOM_TESTS)
def test_order_in_random_tests(path, adversary):
    run(path, RANDOM_TESTS[path], adversary)
