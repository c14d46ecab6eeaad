"""Where a lease runs: on a GPU, or where none is, as if there were one.

"cuda" is the GPU. "cpu" has the CPU in its place, and "emulated" a GPU that is
emulated (tests/emulated_cuda.py), whose kernels are the CPU's: there nothing
that is timed means anything, and sizes are small. What only a GPU has is left
out. Imports nothing but the standard library by itself.
"""

import os
import pathlib
from collections.abc import Mapping

PLACES = ("cuda", "cpu", "emulated")
# What results are compared with, and what is timed beside chameleon.
NATIVE = {"cuda": "cuda", "cpu": "cpu", "emulated": "cuda"}
TIMED = {"cuda": "cuda", "cpu": "cpu", "emulated": "cpu"}
ROOT = pathlib.Path(__file__).resolve().parents[2]


def common_environment(place: str) -> dict[str, str]:
    """Variables of all processes: what they import, and what they must not."""
    # Those at a time would be in each other's way, and bits depend on it.
    threads = {} if place == "cuda" else {"OMP_NUM_THREADS": "1"}
    paths = ("python", "tests", "tests/gpu", "tests/benchmarks/training")
    paths += ("packages",)  # of others, which `ci/gpu pack` takes along
    return threads | {
        "PYTHONPATH": os.pathsep.join(str(ROOT / path) for path in paths),
        "PYTHONFAULTHANDLER": "1",
        "PYTHONUNBUFFERED": "1",
        # `import torch` alone may bring chameleon where it is installed.
        "CHAMELEON_AUTOLOAD": "0",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }


def environment(place: str, library: pathlib.Path) -> Mapping[str, str]:
    """Variables of a process that uses the device there.

    Args:
        place: One of `PLACES`.
        library: The emulated GPU, for "emulated".
    """
    if place != "emulated":
        return {"CHAMELEON_PHYSICAL_DEVICE": place}
    # The largest toy is a ResNet-18, whose lists of tensors are long.
    return emulated_environment(library, "random seed=3", mebibytes=1024)


def emulated_environment(
    library: pathlib.Path, options: str, mebibytes: int = 512
) -> dict[str, str]:
    """Variables of a process on an emulated GPU of that size."""
    return {
        "CHAMELEON_EMULATED": f"{options} mebibytes={mebibytes}",
        "CHAMELEON_PHYSICAL_DEVICE": "cuda",
        "LD_PRELOAD": str(library),
    }


def begin(place: str) -> None:
    """Imports chameleon, for whoever runs with `environment()`."""
    import torch_chameleon

    torch_chameleon.config.oversubscription = 64
    if place == "emulated":
        _install(native=False)


def begin_native(place: str) -> None:
    """Makes native PyTorch ready, for whoever runs with `environment()`."""
    if place == "emulated":
        _install(native=True)


def _install(native: bool) -> None:
    import emulated_cuda
    import lease_workloads
    import torch

    # Of attention only math is computed.
    for kernels in ("cudnn", "flash", "mem_efficient"):
        getattr(torch.backends.cuda, f"enable_{kernels}_sdp")(False)
    lease_workloads.HALF_ROWS //= 32  # slow on the CPU
    lease_workloads.TEXT //= 8
    lease_workloads.DEPTH //= 4
    emulated_cuda.install(native=native)
