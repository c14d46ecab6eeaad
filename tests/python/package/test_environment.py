"""A misspelt CHAMELEON_ variable is named, and no other one is."""

import os
import re
import subprocess
import sys

import pytest
from support import ROOT
from torch_chameleon import _environment, config


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("CHAMELEON_HBM_BUGDET", "CHAMELEON_HBM_BUDGET"),
        ("CHAMELEON_HBMBUDGET", "CHAMELEON_HBM_BUDGET"),
        ("CHAMELEONHBM_BUDGET", "CHAMELEON_HBM_BUDGET"),
        ("chameleon_hbm_budget", "CHAMELEON_HBM_BUDGET"),
        ("CHAMELEON_BUDGET", "CHAMELEON_HBM_BUDGET"),
        ("CHAMELEON_DEVICE", "CHAMELEON_PHYSICAL_DEVICE"),
        ("CHAMELEON_GPU", "CHAMELEON_SIMULATED_GPU"),
        ("CHAMELEON_SIMULATE_GPU", "CHAMELEON_SIMULATED_GPU"),
        ("CHAMELEON_POLICIES", "CHAMELEON_POLICY"),
        ("CHAMELEON_STEP_MARK", "CHAMELEON_STEP_MARKS"),
        ("CHAMELEON_OVERSUBSCRIBTION", "CHAMELEON_OVERSUBSCRIPTION"),
        ("CHAMELEON_ASCUDA", "CHAMELEON_AS_CUDA"),
        ("CHAMELEON_AUTO_LOAD", "CHAMELEON_AUTOLOAD"),
        ("CHAMELEON_COMPILED", "CHAMELEON_COMPILE"),
    ],
)
def test_a_misspelt_one(given, nearest):
    assert _environment.misspelt([given]) == {given: nearest}


@pytest.mark.parametrize(
    "given",
    ["PATH", "CHAMELEON", "CHAMELEON_EAGER", "CHAMELEON_CACHE",
     "CHAMELEON_RELOAD", "TORCH_CHAMELEON_OVERLAY", "CHAMELEON_TEST_DEVICE"],
)  # fmt: skip
def test_what_may_be_another_program_s(given):
    assert _environment.misspelt([given]) == {}


def test_every_option_is_known():
    keys = [f"CHAMELEON_{key.upper()}" for key, _ in config]
    assert set(keys) < set(_environment.names())
    assert _environment.misspelt(keys) == {}


READ = re.compile(
    r"""(?:environ(?:\.\w+)?[\[(]|getenv\(|in\s)\s*["'](CHAMELEON_\w+)["']"""
    r"""|_VARIABLE = ["'](CHAMELEON_\w+)["']"""
)


def test_what_the_sources_read_is_known():
    found = {
        one or other
        for folder in ("python", "tests")
        for suffix in ("*.py", "*.cpp", "*.h")
        for path in (ROOT / folder).rglob(suffix)
        for one, other in READ.findall(path.read_text())
    }
    assert {"CHAMELEON_AS_CUDA", "CHAMELEON_TEST_ADVERSARY"} <= found
    several = tuple(n for n in _environment.names() if n.endswith("_"))
    assert {
        name
        for name in found
        if name not in _environment.names() and not name.startswith(several)
    } == set()


def test_it_is_named_once(fresh):
    code = """
import importlib, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch_chameleon
    import torch_chameleon.profiler
for one in caught:
    if "environment" in str(one.message):
        print(one.message, one.filename)
"""
    text = fresh(code, CHAMELEON_HBM_BUGDET="1GiB", CHAMELEON_POLICY="lru")
    assert text == (
        "chameleon: nothing reads the environment variable "
        "'CHAMELEON_HBM_BUGDET'; did you mean CHAMELEON_HBM_BUDGET? <string>"
    )


def test_commands_say_what_is_wrong_in_a_sentence():
    done = subprocess.run(
        [sys.executable, "-m", "torch_chameleon", "run", "train.py"],
        env=os.environ | {"CHAMELEON_PHYSICAL_DEVICE": "gpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("torch_chameleon: environment variable CHAMELEON_")
    assert line.endswith("must be one of auto, cuda, cpu, simulated")
