"""Test modules can be imported by their names alone."""

import collections

from support import ROOT


def test_every_name_is_one_module(pytestconfig):
    """The first module of a name would hide the others from all tests."""
    folders = [*pytestconfig.getini("pythonpath"), "tests/python"]
    found = collections.defaultdict(list)
    for folder in [*folders, "tests/integration"]:
        for path in (ROOT / folder).glob("*.py"):
            found[path.stem].append(str(folder))
    found["adaptation"].remove("tests/integration")  # asked for by package
    assert {k: v for k, v in found.items() if len(v) > 1} == {}
