"""A stranger finds the test of each part: by its name, or named in its head."""

import re
from pathlib import Path

import pytest
from support import ROOT

LAYERS = ("backend", "profiler", "memory", "kernels")
PARTS = sorted(
    path.relative_to(ROOT).with_suffix("").as_posix()
    for layer in LAYERS
    for path in (ROOT / layer).rglob("*.cpp")
)
TESTS = {path.name for path in (ROOT / "tests").rglob("*")}


def head_of(part):
    """The comment that a header, or else a source, begins with."""
    path = ROOT / f"{part}.h"
    if not path.exists():
        path = ROOT / f"{part}.cpp"
    return re.match(r"(//.*\n)*", path.read_text()).group()


@pytest.mark.parametrize("part", PARTS)
def test_each_part_has_a_test(part):
    if f"{Path(part).name}_test.cpp" in TESTS:
        return
    named = re.search(r"^// Tests: (.+)\.$", head_of(part), re.MULTILINE)
    assert named, f"{part}.h names no test: // Tests: some_test.cpp."
    for name in named.group(1).split(", "):
        assert name in TESTS, f"{part}.h: {name} is no test"
