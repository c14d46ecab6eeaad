"""The torch.backends entry point loads the package only where asked to."""

import os
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

pytestmark = pytest.mark.skipif(
    "torch_chameleon" not in entry_points(group="torch.backends").names,
    reason="torch_chameleon is on the path, but not installed",
)

IMPORTED = "print('torch_chameleon' in sys.modules)"


def run(code, **environment):
    """Runs code in a fresh interpreter; returns what it printed."""
    asked = ("CHAMELEON_AUTOLOAD", "CHAMELEON_AS_CUDA")
    env = {k: v for k, v in os.environ.items() if k not in asked}
    env.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "False"),
        ({"CHAMELEON_AUTOLOAD": "0"}, "False"),
        ({"CHAMELEON_AUTOLOAD": "1"}, "True"),
        ({"CHAMELEON_AS_CUDA": "0"}, "False"),
        (
            {"CHAMELEON_AUTOLOAD": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
            "False",
        ),
    ],
)
def test_import_torch(environment, expected):
    assert run(f"import sys, torch; {IMPORTED}", **environment) == expected


def test_autoloaded_device_works():
    code = "import torch; print(torch.ones(2, device='chameleon').sum().item())"
    assert run(code, CHAMELEON_AUTOLOAD="1") == "2.0"


@pytest.mark.parametrize("first", ["torch", "torch_chameleon, torch"])
def test_as_cuda(first):
    """`import torch` is enough: a program need not know of the device."""
    code = f"import {first}; print(torch.ones(2, device='cuda').device)"
    assert run(code, CHAMELEON_AS_CUDA="1") == "chameleon:0"


def test_package_imported_first():
    """It imports torch itself, whose entry point must not import it again."""
    code = (
        "import torch_chameleon, torch; "
        "print(torch.ones(2, device='chameleon').sum().item())"
    )
    assert run(code, CHAMELEON_AUTOLOAD="1") == "2.0"


def test_no_use_of_the_device():
    code = (
        "import torch; from torch_chameleon import _C; "
        "torch.manual_seed(0); torch.accelerator.is_available(); "
        "print(_C.first_use())"
    )
    assert run(code, CHAMELEON_AUTOLOAD="1") == "None"


def test_loaders_pin_and_fork():
    """What programs that never heard of the device do with any accelerator."""
    code = """
import torch
from torch.utils.data import DataLoader
x = torch.arange(8.0)
loader = DataLoader(x, batch_size=4, num_workers=2, pin_memory=True)
batches = [(batch.tolist(), batch.is_pinned()) for batch in loader]
print(batches == [([0.0, 1.0, 2.0, 3.0], True), ([4.0, 5.0, 6.0, 7.0], True)])
"""
    assert run(code, CHAMELEON_AUTOLOAD="1") == "True"


def test_why_it_failed_is_said():
    """torch wraps what went wrong; the cause stays readable."""
    done = subprocess.run(
        [sys.executable, "-c", "import torch"],
        env=os.environ
        | {
            "CHAMELEON_AUTOLOAD": "1",
            "CHAMELEON_POLICY": "nonsense",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "CHAMELEON_POLICY" in done.stderr
    assert "must be one of" in done.stderr
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in done.stderr


def test_children_load_it_too():
    """The variable that keeps torch from loading it twice is put back."""
    code = (
        "import torch_chameleon, subprocess, sys; "
        f"print(subprocess.check_output([sys.executable, '-c', "
        f'"import sys, torch; {IMPORTED}"], text=True))'
    )
    assert run(code, CHAMELEON_AUTOLOAD="1") == "True"
