"""Examples in docstrings and in python/examples run as they are."""

import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch_chameleon

EXAMPLES = Path(__file__).parents[2] / "python" / "examples"
MODULES = [
    module.name
    for module in pkgutil.walk_packages(
        torch_chameleon.__path__, "torch_chameleon."
    )
    if not module.name.endswith(("._C", ".__main__"))
]


@pytest.mark.parametrize("name", ["torch_chameleon", *MODULES])
def test_docstrings(name):
    with torch_chameleon.config.patch(hbm_budget="256MiB"):
        result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.stem
)
def test_examples(path):
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
