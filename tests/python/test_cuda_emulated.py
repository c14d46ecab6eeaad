"""The device on CUDA, on a GPU that is emulated.

PyTorch's own CUDA code runs, on host memory: a stand-in for CUDA's libraries
is loaded before it (tests/cpp/support/emulated_cuda.cpp), and the CPU's kernels
compute what CUDA's would. Copies, room, streams and events are real, late and
checked: misuse of the driver ends the process. cuBLAS and cuDNN find no GPU
there. One process a schedule runs all checks, since each start costs seconds.
"""

import hashlib
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = pathlib.Path(__file__).with_name("on_emulated_cuda.py")
SOURCES = [
    *(
        ROOT / "tests/cpp/support" / f"{name}.cpp"
        for name in (
            "emulated_cuda",
            "emulated_driver",
            "emulated_calls",
            "emulated_memory",
            "stream_clocks",
        )
    ),
    *(
        ROOT / "backend/runtime" / f"{name}.cpp"
        for name in ("address_space", "range_set", "gpu_profiles", "options")
    ),
    ROOT / "backend/runtime/cuda_driver.cpp",
]
SCHEDULES = ["prompt", "late seed=2", "random seed=3"]


def cuda_headers():
    """Where the build looks for them (ci/cmake/cuda.cmake), or None."""
    wheels = importlib.util.find_spec("nvidia")
    folders = []
    if wheels and wheels.submodule_search_locations:
        folders = [f"{at}/cu13" for at in wheels.submodule_search_locations]
    for folder in ("/usr/local/cuda", *folders):
        if pathlib.Path(folder, "include/cudaTypedefs.h").exists():
            return f"{folder}/include"
    return None


HEADERS = cuda_headers()

pytestmark = pytest.mark.skipif(
    torch.version.cuda is None or HEADERS is None or not shutil.which("c++"),
    reason="needs a CUDA build of torch, CUDA's headers and a C++ compiler",
)


@pytest.fixture(scope="session")
def emulated_cuda(request):
    """The library to load before PyTorch; built once, and kept."""
    digest = hashlib.sha256(HEADERS.encode())
    for source in SOURCES:
        for path in (source, source.with_suffix(".h")):
            digest.update(path.read_bytes() if path.exists() else b"")
    folder = pathlib.Path(request.config.cache.mkdir("emulated_cuda"))
    library = folder / f"{digest.hexdigest()[:16]}.so"
    if not library.exists():
        made = library.with_suffix(f".{os.getpid()}")
        build = ["c++", "-std=c++20", "-O1", "-fPIC", "-shared"]
        build += ["-fvisibility=hidden", f"-I{ROOT}", "-isystem"]
        build += [HEADERS, "-Wl,-soname,libcuda.so.1", "-o", made]
        subprocess.run([*build, *SOURCES, "-ldl", "-lpthread"], check=True)
        made.rename(library)
    return library


@pytest.fixture(scope="session")
def outcomes(emulated_cuda):
    """A function that runs the script and returns what it says, by check."""
    known = {}

    def run(schedule):
        if schedule not in known:
            paths = [str(SCRIPT.parents[1]), os.environ.get("PYTHONPATH", "")]
            done = subprocess.run(
                [sys.executable, str(SCRIPT)],
                env={
                    **os.environ,
                    "CHAMELEON_EMULATED": f"{schedule} mebibytes=512",
                    "CHAMELEON_PHYSICAL_DEVICE": "cuda",
                    "LD_PRELOAD": str(emulated_cuda),
                    "PYTHONPATH": os.pathsep.join(paths),
                },
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            known[schedule] = json.loads(done.stdout.splitlines()[-1])
        return known[schedule]

    return run


CHECKS = [
    "import_touches_nothing",
    "bits_survive_eviction",
    "training_has_the_bits_of_the_cpu",
    "streams_agree",
    "events_tell_times",
    "pinned_copies_do_not_wait",
    "cuda_tensors_are_copied",
    "a_crossing_backward_is_one_sentence",
    "plain_cuda_keeps_its_allocator",
    "seeds_are_shared",
    "captures_are_refused",
    "attention_is_chosen_by_cuda",
    "resident_tensors_are_cuda",
    "scaled_training",
    "invariants_hold",
]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("check", CHECKS)
def test_on_emulated_cuda(outcomes, schedule, check):
    assert outcomes(schedule)[check] == "ok"
