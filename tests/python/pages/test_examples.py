"""Examples in docstrings and in python/examples run as they are."""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys

import pytest
import torch_chameleon
from support import ROOT

EXAMPLES = ROOT / "python" / "examples"
MODULES = [
    module.name
    for module in pkgutil.walk_packages(
        torch_chameleon.__path__, "torch_chameleon."
    )
    if not module.name.endswith(("._C", ".__main__"))
]
INTEGRATIONS = "torch_chameleon.integrations."
OF_LIBRARIES = {"elastic_callback": "transformers"}  # others have their names


@pytest.mark.parametrize("name", ["torch_chameleon", *MODULES])
def test_docstrings(name):
    if name.startswith(INTEGRATIONS):
        library = name.removeprefix(INTEGRATIONS)
        library = OF_LIBRARIES.get(library, library)
        pytest.importorskip(library, reason=f"{library} is not installed")
    if name == "torch_chameleon.elastic._torchft":
        pytest.importorskip("torchft", reason="torchft is not installed")
    with torch_chameleon.config.patch(hbm_budget="256MiB"):
        result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


# Seconds each, most of them to import a trainer.
@pytest.mark.parametrize(
    "path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.stem
)
def test_examples(path):
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, check=False
    )
    missing = re.search(r"^ModuleNotFoundError: (.*)", done.stderr, re.M)
    if missing is not None and "torch_chameleon" not in missing[1]:
        pytest.skip(missing[1])
    assert done.returncode == 0, done.stderr
    assert done.stdout
