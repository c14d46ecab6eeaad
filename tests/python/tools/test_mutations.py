"""The planted bugs of tests/mutations still apply, and each has its catcher."""

import re
import subprocess
import sys

import pytest
from support import ROOT

_FOLDER = ROOT / "tests/mutations"
sys.path.append(str(_FOLDER))  # its `run` is not the only one

import planting  # noqa: E402
from planted import GONE, MUTATIONS, Mutation  # noqa: E402


def test_all_apply():
    done = subprocess.run(
        [sys.executable, _FOLDER / "run.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.split()[0]) == len(MUTATIONS) >= 60


def test_the_table_names_who_catches_each():
    """Or says that it was not run; a survivor is a missing test."""
    rows = re.findall(
        r"^\| (.+) \| `.+` \| (`.+`.*|not run) \|$",
        (_FOLDER / "README.md").read_text(),
        re.MULTILINE,
    )
    assert [name for name, _ in rows] == [each.name for each in MUTATIONS]
    assert sum(by != "not run" for _, by in rows) >= 20


_CODE = """
int f(int a) {
  // mutant: one
  if (a > 0 && // both
      g(";", ';') <
          2) {
    // mutant: two
    a = h({1, 2}, [&] { return 3; });
  }
  return a;
}
constexpr Row kRows[] = {
    // mutant: three
    Row{"a", 1},
    Row{"b", 2},
};
"""


def planted(tmp_path, *mutations, code=_CODE):
    """What is wrong with mutations of a small source."""
    (tmp_path / "memory").mkdir(exist_ok=True)
    (tmp_path / "memory" / "code.cpp").write_text(code)
    return planting.problems(mutations, tmp_path)


def mutation(marker, change=GONE):
    return Mutation("a bug", marker, change, ())


ALL = [mutation(marker) for marker in ("one", "two", "three")]


@pytest.mark.parametrize(
    ("marker", "change", "before", "after"),
    [
        ("one", ("< 2", "< 3"), "<\n          2) {", "< 3) {"),
        ("two", GONE, "    a = h({1, 2}, [&] { return 3; });", "    "),
        ("two", "a = 4;", "a = h({1, 2}, [&] { return 3; });", "a = 4;"),
        ("three", GONE, 'Row{"a", 1},\n    Row', "\n    Row"),
    ],
    ids=["a piece of a head", "gone", "another", "an entry of a list"],
)
def test_what_a_statement_becomes(tmp_path, marker, change, before, after):
    assert planted(tmp_path, *ALL) == []
    place = planting.places(tmp_path)[marker][0]
    assert place.file == "memory/code.cpp"
    assert not place.needs_torch
    bug = planting.plant(_CODE, place, mutation(marker, change))
    assert bug == _CODE.replace(before, after)


@pytest.mark.parametrize(
    ("mutations", "code", "wrong"),
    [
        (ALL[1:], _CODE, "// mutant: one in memory/code.cpp has no entry"),
        ([*ALL, mutation("four")], _CODE, "no // mutant: four is left"),
        (ALL, _CODE.replace("two", "one"), "stands in 2 places"),
        ([*ALL, mutation("two", ("9", "8"))], _CODE, "has '9' 0 times"),
        ([*ALL, mutation("two", ("a", "a"))], _CODE, "it changes nothing"),
        ([*ALL, mutation("two", ("h", "h"))], "// mutant: two\n", "no state"),
    ],
    ids=["entry", "marker", "twice", "piece", "nothing", "statement"],
)
def test_what_does_not_fit_is_named(tmp_path, mutations, code, wrong):
    assert wrong in "\n".join(planted(tmp_path, *mutations, code=code))
