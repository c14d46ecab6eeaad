"""The same ops below autograd as native CUDA, over PyTorch's databases.

Composites decide by the device, its capabilities, dtypes and shapes. Natively
PyTorch's own CUDA code decides, on the emulated GPU; here chameleon's does, on
the same one. What differs is in `op_sequence_differences`, with its reason.
(On `cpu`, `conformance/databases/test_parity` compares with the CPU.)
"""

import json
import pathlib
import subprocess
import sys

import emulated_cuda
import pytest
from op_sequence_differences import DIFFERENT, IGNORED, IGNORED_IN_A_ROW

SCRIPT = pathlib.Path(__file__).with_name("op_sequences.py")
DTYPES = "float32,float16,bfloat16"

pytestmark = pytest.mark.skipif(
    not emulated_cuda.can_be_built(), reason=emulated_cuda.NEEDS
)


def sequences(folder, samples):
    """What native and chameleon do: two processes, side by side."""
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", SCRIPT, device, samples, DTYPES],
            env=emulated_cuda.environment(folder, "prompt", mebibytes=2048)
            # `import torch` alone may bring chameleon where it is installed.
            | {"CHAMELEON_AUTOLOAD": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for device in ("cuda", "chameleon")
    ]
    outcomes = [process.communicate() for process in running]
    for process, (_, error) in zip(running, outcomes, strict=True):
        assert process.returncode == 0, error
    return [json.loads(output.splitlines()[-1]) for output, _ in outcomes]


def counted(ops):
    """Those that count; of an error its type."""
    kept = [
        " ".join(op.split()[:2]) if op.startswith("RAISED") else op
        for op in ops
        if op not in IGNORED
    ]
    for row in IGNORED_IN_A_ROW:
        at = 0
        while at < len(kept):
            if tuple(kept[at : at + len(row)]) == row:
                del kept[at : at + len(row)]
            else:
                at += 1
    return kept


def differences(native, ours):
    """{sample: how it differs}, and which rows of DIFFERENT were needed."""
    assert native.keys() == ours.keys()
    unexplained, used = {}, set()
    for sample, ops in native.items():
        pair = counted(ops), counted(ours[sample])
        if pair[0] == pair[1]:
            continue
        _, _, name = sample.partition(" ")
        rows = {row for row in DIFFERENT if name.startswith(row)}
        used |= rows
        if not rows:
            unexplained[sample] = pair
    return unexplained, used


def compare(folder, samples):
    native, ours = sequences(folder, str(samples))
    unexplained, used = differences(native, ours)
    assert unexplained == {}
    assert used == set(DIFFERENT)  # what is explained still differs
    stopped = sum(
        ops[-1].startswith("RAISED") for ops in native.values() if ops
    )
    assert stopped / len(native) < 0.08  # compared up to there


@pytest.fixture
def folder(request):
    return request.config.cache.mkdir("emulated_cuda")


@pytest.mark.sample
def test_sample_of_sequences(folder):
    compare(folder, 2)


@pytest.mark.slow
def test_sequences(folder):
    compare(folder, 10)


def test_a_branch_not_taken_is_seen():
    sample = "float32 nn.RMSNorm in training#0"
    native = {sample: ["_fused_rms_norm.default", "--"]}
    ours = {sample: ["pow.Tensor_Scalar", "detach.default", "--"]}
    unexplained, used = differences(native, ours)
    assert unexplained == {
        sample: (["_fused_rms_norm.default", "--"], ["pow.Tensor_Scalar", "--"])
    }
    assert used == set()
    same = {sample: ["detach.default", *native[sample]]}
    assert differences(native, same) == ({}, set())
