"""The planted bugs of tests/mutations still apply, and each has its catcher."""

import pathlib
import re
import subprocess
import sys

_FOLDER = pathlib.Path(__file__).parents[1] / "mutations"


def test_all_apply():
    done = subprocess.run(
        [sys.executable, _FOLDER / "run.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.split()[0]) >= 20


def test_the_table_names_who_catches_each():
    """Or says that it was not run; a survivor is a missing test."""
    names = re.findall(
        r'Mutation\(\n        "(.+)",', (_FOLDER / "planted.py").read_text()
    )
    rows = re.findall(
        r"^\| (.+) \| `.+` \| (`.+`.*|not run) \|$",
        (_FOLDER / "README.md").read_text(),
        re.MULTILINE,
    )
    assert [name for name, _ in rows] == names
    assert sum(by != "not run" for _, by in rows) >= 20
