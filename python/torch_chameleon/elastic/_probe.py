"""Asks the driver for a GPU: `_probe.py NUMBER`, a process of its own.

A driver whose GPU has failed may hang whoever asks. The exit status is what the
driver's API says, 0: the GPU is there. Imports nothing that is slow.
"""

import ctypes
import os
import sys

LIBRARY_VARIABLE = "CHAMELEON_TEST_CUDA_DRIVER"  # tests have one of their own
_UNKNOWN = 255


def ask(number: int) -> int:
    """What the driver says when a context is made there.

    Args:
        number: Of the GPU, among those that this process sees.
    """
    name = os.environ.get(LIBRARY_VARIABLE, "libcuda.so.1")
    try:
        cuda = ctypes.CDLL(name)
    except OSError:
        return 0  # nobody can say
    device, context = ctypes.c_int(), ctypes.c_void_p()
    said = (
        cuda.cuInit(0)
        or cuda.cuDeviceGet(ctypes.byref(device), number)
        or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    )
    return min(int(said), _UNKNOWN)


if __name__ == "__main__":
    os._exit(ask(int(sys.argv[1])))  # no driver's exit handlers
