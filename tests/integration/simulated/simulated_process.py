"""Code that runs on a simulated GPU.

The target is fixed once a process, so it runs in others.
"""

import contextlib
import json
import os
import subprocess
import sys

_PRELUDE = """
import resource, sys, time, warnings
import torch, torch_chameleon
from torch import nn
from torch_chameleon import config, swap_stats
config.physical_device = "simulated"
warnings.simplefilter("ignore")

def timed(action):
    # Milliseconds on the device's clock.
    torch.chameleon.synchronize()
    start, end = (torch.Event("chameleon", enable_timing=True) for _ in "12")
    start.record()
    action()
    end.record()
    torch.chameleon.synchronize()
    return start.elapsed_time(end)
"""


_PATH = os.pathsep.join(sys.path)

# Runs what comes in, one JSON text a line, and answers with what it printed.
_LOOP = """
import contextlib, gc, io, json, traceback
for line in sys.stdin:
    printed = io.StringIO()
    names = {key: globals()[key] for key in (
        "torch", "torch_chameleon", "nn", "config", "swap_stats", "timed",
        "warnings")}
    error = None
    with contextlib.redirect_stdout(printed), config.patch(hbm_budget=None):
        try: exec(json.loads(line), names)
        except BaseException: error = traceback.format_exc()
    names.clear()
    gc.collect()
    torch.chameleon.synchronize()
    torch_chameleon._C.check_invariants(0, 3)
    print(json.dumps([printed.getvalue(), error]), flush=True)
"""


@contextlib.contextmanager
def one_for_all():
    """Runs code on a simulated H200, returns the lines that it printed."""
    with subprocess.Popen(
        [sys.executable, "-c", _PRELUDE + _LOOP],
        env={**os.environ, "PYTHONPATH": _PATH},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:

        def run(code):
            process.stdin.write(json.dumps(code) + "\n")
            process.stdin.flush()
            printed, error = json.loads(process.stdout.readline())
            assert error is None, error
            return printed.splitlines()

        yield run
        process.stdin.close()
        assert process.wait() == 0


def one_for_each(fresh):
    """The same in an interpreter of its own, with environment."""

    def run(code, **environment):
        printed = fresh(_PRELUDE + code, PYTHONPATH=_PATH, **environment)
        return printed.splitlines()

    return run
