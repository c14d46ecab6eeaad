"""Several devices in one process: each has its own memory, policy and stats.

The cpu runtime stands for two of them, then the emulated driver does. All
checks run in one process each, since the other files' has one device.
"""

import pathlib

import pytest
import scripted_checks
from support import needs_testing

pytestmark = needs_testing

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
    "each_makes_room_of_its_own_deferred_work",
    "there_is_no_third",
]


@pytest.fixture(scope="module")
def outcomes(request):
    return scripted_checks.outcomes(SCRIPT, request, "late devices=2")


@pytest.mark.parametrize("physical", scripted_checks.PHYSICAL)
@pytest.mark.parametrize("check", CHECKS)
def test_on_two_devices(outcomes, physical, check):
    assert outcomes(physical)[check] == "ok"


def test_no_check_is_left_out(outcomes):
    assert sorted(outcomes("cpu")) == sorted(CHECKS)
