"""Test modules can be imported by their names alone."""

import collections

from support import ROOT


def test_every_name_is_one_module(pytestconfig):
    """The first module of a name would hide the others from all tests."""
    folders = {ROOT / "tests", *pytestconfig.getini("pythonpath")}
    for name in pytestconfig.getini("testpaths"):
        folders |= {path.parent for path in (ROOT / name).rglob("test_*.py")}
    assert len(folders) > 10
    found = collections.defaultdict(list)
    for folder in folders:
        if (folder / "__init__.py").exists():
            continue  # it is part of its modules' names
        for path in folder.glob("*.py"):
            found[path.stem].append(str(folder.relative_to(ROOT)))
    found["adaptation"].remove("tests/integration")  # asked for by package
    assert {k: v for k, v in found.items() if len(v) > 1} == {}
