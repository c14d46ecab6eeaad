"""Several devices in one process: each has its own memory, policy and stats.

The cpu runtime stands for two of them, then the emulated driver does. All
checks run in one process each, since the other files' has one device.
"""

import json
import os
import pathlib
import subprocess
import sys

import emulated_cuda
import pytest

SCRIPT = pathlib.Path(__file__).with_name("on_two_devices.py")
CHECKS = [
    "each_is_counted_by_itself",
    "the_current_one_is_where_tensors_are_made",
    "operands_are_on_one_device",
    "copies_go_across",
    "copies_in_both_directions_at_once",
    "a_model_may_span_both",
    "optimizers_take_both",
    "each_trains_in_a_thread_of_its_own",
    "streams_and_events",
    "files_name_the_device",
    "sparse_tensors_stay_where_they_are",
    "a_full_device_leaves_the_other_alone",
    "there_is_no_third",
]


PHYSICAL = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(
            not emulated_cuda.can_be_built(), reason=emulated_cuda.NEEDS
        ),
    ),
]


def on_cpu():
    """What the script says became of each check, by name."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [str(SCRIPT.parents[1]), os.environ.get("PYTHONPATH", "")]
            ),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def outcomes(request):
    """A function that runs the script and returns what it says, by check."""
    known = {}

    def run(physical):
        if physical not in known:
            folder = request.config.cache.mkdir("emulated_cuda")
            known[physical] = (
                on_cpu()
                if physical == "cpu"
                else emulated_cuda.outcomes(SCRIPT, folder, "late devices=2")
            )
        return known[physical]

    return run


@pytest.mark.parametrize("physical", PHYSICAL)
@pytest.mark.parametrize("check", CHECKS)
def test_on_two_devices(outcomes, physical, check):
    assert outcomes(physical)[check] == "ok"


def test_no_check_is_left_out(outcomes):
    assert sorted(outcomes("cpu")) == sorted(CHECKS)
