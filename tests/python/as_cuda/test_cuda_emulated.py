"""The device on CUDA, on a GPU that is emulated.

PyTorch's own CUDA code runs, on host memory: a stand-in for CUDA's libraries
is loaded before it (tests/cpp/support/emulated_cuda.cpp), and the CPU's kernels
compute what CUDA's would. Copies, room, streams and events are real, late and
checked: misuse of the driver ends the process. cuBLAS and cuDNN are stand-ins
too. One process a schedule runs all checks, since each start costs seconds.
"""

import pathlib

import emulated_cuda
import pytest
from support import needs_testing

SCRIPT = pathlib.Path(__file__).with_name("on_emulated_cuda.py")
SCHEDULES = ["prompt", "late seed=2 pin_us=250", "random seed=3"]

pytestmark = [
    needs_testing,
    pytest.mark.skipif(
        not emulated_cuda.can_be_built(), reason=emulated_cuda.NEEDS
    ),
]


@pytest.fixture(scope="module")
def outcomes(request):
    """A function that runs the script and returns what it says, by check."""
    known = {}

    def run(schedule):
        if schedule not in known:
            folder = request.config.cache.mkdir("emulated_cuda")
            known[schedule] = emulated_cuda.outcomes(SCRIPT, folder, schedule)
        return known[schedule]

    return run


CHECKS = [
    "import_touches_nothing",
    "bits_survive_eviction",
    "training_has_the_bits_of_the_cpu",
    "a_step_tells_what_it_waited_for",
    "a_training_leaves_nothing",
    "a_steady_step_asks_cuda_for_nothing",
    "large_tensors_come_back",
    "properties_are_the_gpus",
    "sparse_tensors_are_the_gpus",
    "streams_agree",
    "events_tell_times",
    "pinned_copies_do_not_wait",
    "cuda_tensors_are_copied",
    "a_crossing_backward_is_one_sentence",
    "plain_cuda_keeps_its_allocator",
    "seeds_are_shared",
    "captures_are_refused",
    "attention_is_chosen_by_cuda",
    "what_cudnn_changes_in_silence_is_kept",
    "layers_of_cudnn_are_computed",
    "a_norm_in_one_kernel_is_computed",
    "convolutions_choose_with_hbm_for_themselves",
    "resident_tensors_are_cuda",
    "collectives_are_ordered_by_streams",
    "sends_and_receives_keep_their_operands",
    "coalesced_collectives_are_one_work",
    "scaled_training",
    "invariants_hold",
    "a_lost_gpu_is_told_of_once",
]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("check", CHECKS)
def test_on_emulated_cuda(outcomes, schedule, check):
    assert outcomes(schedule)[check] == "ok"
