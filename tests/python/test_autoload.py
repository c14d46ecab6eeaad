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
    env = {k: v for k, v in os.environ.items() if k != "CHAMELEON_AUTOLOAD"}
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


def test_package_imported_first():
    """It imports torch itself, whose entry point must not import it again."""
    code = (
        "import torch_chameleon, torch; "
        "print(torch.ones(2, device='chameleon').sum().item())"
    )
    assert run(code, CHAMELEON_AUTOLOAD="1") == "2.0"
