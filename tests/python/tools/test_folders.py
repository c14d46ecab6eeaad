"""Folders are small enough to look through, and tests/README.md names them."""

import os
import re
from fnmatch import fnmatch
from pathlib import Path

from support import ROOT

MOST_FILES = 45  # directly in a folder
# Folders of tests/cpp that are not named after what they test.
OF_NO_SOURCE = {"fuzz", "support"}


def folders():
    """Folders of the repository, each with its files; nothing that is made."""
    lines = (ROOT / ".gitignore").read_text().split()
    made = [".git", *(line.strip("/").rpartition("/")[2] for line in lines)]

    def kept(names):
        return [x for x in names if not any(fnmatch(x, y) for y in made)]

    found = {}
    for folder, inner, files in os.walk(ROOT):
        inner[:] = kept(inner)
        found[Path(folder).relative_to(ROOT)] = kept(files)
    return found


def folders_of(tests):
    """Those within tests/ that have such files, relative to it."""
    return {
        str(folder.relative_to("tests"))
        for folder, files in folders().items()
        if folder.is_relative_to("tests")
        and any(fnmatch(file, tests) for file in files)
    }


def test_no_folder_has_too_many_files():
    counts = {str(folder): len(files) for folder, files in folders().items()}
    assert counts["."] > 0
    assert counts["memory/policy"] > 0
    assert {k: n for k, n in counts.items() if n > MOST_FILES} == {}


def test_the_table_names_each_folder_of_python_tests():
    page = (ROOT / "tests/README.md").read_text()
    named = set(re.findall(r"^\| \[?`([\w/]+)/`", page, re.M))
    assert len(named) > 20
    assert folders_of("test_*.py") - named == set()
    assert {x for x in named if not (ROOT / "tests" / x).is_dir()} == set()


def test_folders_of_cpp_tests_are_named_after_what_they_test():
    tested = {
        folder.removeprefix("cpp/").replace("runtime", "backend/runtime", 1)
        for folder in folders_of("*_test.cpp")
        if folder.startswith("cpp/")
    } - OF_NO_SOURCE
    assert len(tested) > 15
    assert {x for x in tested if not (ROOT / x).is_dir()} == set()
