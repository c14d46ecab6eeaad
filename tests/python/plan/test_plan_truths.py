"""The truth that lets a script go on, by what the code does with it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import truth_cases
from torch_chameleon.plan import truths

_OTHERS = [
    f"3.{minor}" for minor in range(10, 15) if minor != sys.version_info.minor
]


@pytest.mark.parametrize(("text", "expected"), truth_cases.ASSERTED)
def test_what_is_asserted_is_true(text, expected):
    assert truth_cases.said(text, truths.expected) == expected


@pytest.mark.parametrize(("text", "expected"), truth_cases.FAILING)
def test_what_ends_in_an_error_is_not_so(text, expected):
    assert truth_cases.said(text, truths.expected) == expected


@pytest.mark.parametrize(("text", "expected"), truth_cases.KEPT)
def test_what_is_kept_is_followed_to_where_it_is_asked_for(text, expected):
    assert truth_cases.said(text, truths.expected) == expected


@pytest.mark.parametrize(("text", "expected"), truth_cases.FREE)
def test_others_decide_for_themselves(text, expected):
    assert truth_cases.said(text, truths.expected) == expected


@pytest.mark.parametrize(("text", "expected"), truth_cases.LOOPS)
def test_a_while_may_wait_for_what_it_reads(text, expected):
    assert truth_cases.said(text, truths.waits) == expected


@pytest.mark.parametrize("version", _OTHERS)
def test_each_python_has_its_own_bytecode(version):
    python = _python(version)
    if python is None:
        pytest.skip(f"no Python {version} is on this machine")
    printed = subprocess.run(
        [python, "-S", truth_cases.__file__, truths.__file__],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    cases = [*truth_cases.ALL, *truth_cases.LOOPS]
    found = zip(cases, json.loads(printed), strict=True)
    assert [
        (text, said) for (text, expected), said in found if said != expected
    ] == []


def _python(version):
    """Where that Python is, in PATH or among pyenv's; None: nowhere."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [
        *sorted(root.glob(f"versions/{version}.*/bin/python")),
        shutil.which(f"python{version}"),
    ]
    for each in filter(None, found):
        # One of pyenv's shims may stand there for a Python that is not.
        asked = subprocess.run(
            [each, "-S", "-c", "pass"], check=False, capture_output=True
        )
        if asked.returncode == 0:
            return each
    return None
