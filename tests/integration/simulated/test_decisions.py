"""What the pager decides does not depend on whether there are bytes.

One program runs twice: on the cpu runtime with the clock of a simulated GPU,
and on that GPU without data. Every pin, fault, victim, fetch, write-back,
release and move, with its place in the arena, is the same, call by call.

Given to both runs are the clock (durations are modelled, from shapes) and what
kernels allocate beside their operands, of which Meta kernels know nothing: the
run without data repeats what the CPU's kernels took and gave back. Not compared
is what the two devices do by different ops: LSTM, batch norm, fused attention;
and convolutions, which cuDNN chooses an algorithm for with all of HBM.
"""

import collections
import json
import os
import pathlib
import subprocess
import sys

import pytest
from support import needs_testing

pytestmark = needs_testing

_PROGRAM = pathlib.Path(__file__).with_name("decisions.py")
_KINDS = {"allocate": 0, "free": 1, "adopt": 2}
_END = 3


def run(*arguments):
    done = subprocess.run(
        [sys.executable, _PROGRAM, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(pathlib.Path(arguments[2]).read_text())


def kernel_memory(log):
    """(call, kind, bytes, which allocation of the kernel), in order."""
    rows = []
    before = None
    for call, kind, _, offset, size in log:
        if kind == "rerun" and before != (call, "rerun"):
            rows.append((call, _END, 0, 0))  # another kernel may follow
        before = (call, kind)
        if kind not in _KINDS:
            continue
        if not rows or rows[-1][0] != call or rows[-1][1] == _END:
            places, count = {}, 0
        if kind == "allocate":
            places[offset] = count
            count += 1
        which = places[offset]  # nothing outlives its kernel
        rows.append((call, _KINDS[kind], size, which))
    return rows


def first_difference(one, other):
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            near = slice(max(index - 5, 0), index + 5)
            return index, one[near], other[near]
    return None if len(one) == len(other) else (len(one), len(other))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt", "experts"])
def test_the_same_with_and_without_data(model, tmp_path):
    real = run("cpu", model, tmp_path / "cpu.json")
    script = tmp_path / "kernel_memory.json"
    script.write_text(json.dumps(kernel_memory(real["log"])))
    modelled = run("simulated", model, tmp_path / "simulated.json", script)
    assert first_difference(real["log"], modelled["log"]) is None
    count = collections.Counter(row[1] for row in real["log"])
    for kind in ("pin", "fault", "victim", "fetch", "write_back", "evict"):
        assert count[kind] > 0, count
    for one, other in zip(real["figures"], modelled["figures"], strict=True):
        host = {"host_budget"}  # of different machines
        assert {k: v for k, v in one.items() if k not in host} == {
            k: v for k, v in other.items() if k not in host
        }
