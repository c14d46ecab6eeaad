"""Composites give native's values, or an error: with any arguments.

What branches on its argument's device, or reads memory itself, must not find
that this one has no kernels, and no memory at a tensor's address.
"""

import os
import subprocess
import sys

import pytest
import torch
from support import ROOT, on_both

PROGRAM = "conformance.databases.composites"
PARTS = 12


def differences(part, tries):
    tests = ROOT / "tests"
    paths = [tests / "python", tests, os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", PROGRAM, part, str(tries)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *lines, count = done.stdout.splitlines()
    assert int(count) > 0
    return lines


@pytest.mark.sample
def test_some_composites():
    assert differences("1/200", 4) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(1, 1 + PARTS))
def test_all_composites(part):
    assert differences(f"{part}/{PARTS}", 40) == []


def test_range_into_a_tensor():
    def run(device):
        out = torch.empty(3, device=device)
        return [torch.ops.aten.range.out_(0.5, 4, out=out), out]

    on_both(run)


def test_a_shape_in_a_tensor():
    def run(device):
        x = torch.arange(6.0).to(device).requires_grad_()
        shape = torch.tensor([2, 3]).to(device)
        return [torch.ops.aten._reshape_from_tensor(x, shape)]

    on_both(run)


def test_batch_norm_without_update():
    def run(device):
        x = torch.arange(24.0).view(2, 3, 4).to(device)
        mean, var = torch.ones(3).to(device), torch.full((3,), 2.0).to(device)
        return list(
            torch.ops.aten._batch_norm_no_update(
                x, mean, None, mean, var, 0.1, 1e-5
            )
        )[:3]

    on_both(run)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.ops.aten._saturate_weight_to_fp16(x),
        lambda x: torch.choose_qparams_optimized(x, 9, 4, 0.5, 8),
        lambda x: torch.fbgemm_pack_gemm_matrix_fp16(x),
        lambda x: torch.fbgemm_pack_quantized_matrix(x.char()),
        lambda x: torch.fbgemm_linear_quantize_weight(x),
    ],
)
def test_what_works_on_the_host_alone_is_one_sentence(call):
    with pytest.raises(NotImplementedError, match=r"on the host.*\.cpu\(\)"):
        call(torch.ones(3, 3, device="chameleon"))
