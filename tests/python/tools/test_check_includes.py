"""ci/check_includes finds each kind of violation, and only those."""

import subprocess
import sys

import pytest
from support import ROOT

TREE = {
    "backend/runtime/clock.h": "",
    "profiler/record.h": '#include "backend/runtime/clock.h"\n',
    "memory/block.h": '#include "profiler/record.h"\n#include <memory>\n',
    "backend/torch/guard.h": "#include <c10/core/Device.h>\n",
    "kernels/copy.h": '#include "backend/torch/guard.h"\n',
    "python/csrc/module.cpp": (
        '#include "chameleon_version.h"\n#include "kernels/copy.h"\n'
    ),
}


def check(root, changes=None):
    """Runs the checker on TREE plus changes; returns its exit and lines."""
    files = TREE | (changes or {})
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    done = subprocess.run(
        [sys.executable, ROOT / "ci" / "check_includes", root],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_clean_tree_has_no_violation(tmp_path):
    assert check(tmp_path) == (0, ["includes: no violation"])


@pytest.mark.parametrize(
    "header",
    ["torch/library.h", "c10/core/Device.h", "ATen/ATen.h", "Python.h"],
)
@pytest.mark.parametrize("layer", ["backend/runtime", "profiler", "memory"])
def test_torch_header_in_the_core(tmp_path, layer, header):
    text = f"// first line\n  #  include <{header}>\n"
    code, lines = check(tmp_path, {f"{layer}/bad.cpp": text})
    assert code == 1
    assert lines == [
        f"{layer}/bad.cpp:2: {layer} is free of torch, but includes <{header}>"
    ]


@pytest.mark.parametrize(
    ("lower", "upper"),
    [
        ("backend/runtime", "profiler/record.h"),
        ("profiler", "memory/block.h"),
        ("memory", "backend/torch/guard.h"),
        ("backend/torch", "kernels/copy.h"),
    ],
)
def test_backward_include(tmp_path, lower, upper):
    code, lines = check(tmp_path, {f"{lower}/bad.h": f'#include "{upper}"\n'})
    assert code == 1
    assert len(lines) == 1
    assert lines[0].startswith(f"{lower}/bad.h:1: {lower} is below ")


def test_folders_of_a_layer(tmp_path):
    """A folder includes those before it, and what is in no folder."""
    changes = {
        "memory/space/arena.h": '#include "memory/block.h"\n',
        "memory/call/pins.h": '#include "memory/space/arena.h"\n',
        "memory/pager.h": '#include "memory/call/pins.h"\n',
    }
    assert check(tmp_path, changes)[0] == 0
    bad = {"memory/space/bad.h": '#include "memory/call/pins.h"\n'}
    assert check(tmp_path, bad) == (
        1,
        [
            "memory/space/bad.h:1: memory/space is below memory/call, but "
            'includes "memory/call/pins.h"'
        ],
    )


def test_folders_below_the_files_beside_them(tmp_path):
    """The files of memory/policy/ are above its folders."""
    changes = {
        "memory/policy/plan/plan.h": "",
        "memory/policy/swapping/planner.h": (
            '#include "memory/policy/plan/plan.h"\n'
        ),
        "memory/policy/policy.h": (
            '#include "memory/policy/swapping/planner.h"\n'
        ),
    }
    assert check(tmp_path, changes)[0] == 0
    bad = {"memory/policy/plan/bad.h": '#include "memory/policy/policy.h"\n'}
    assert check(tmp_path, bad) == (
        1,
        [
            "memory/policy/plan/bad.h:1: memory/policy/plan is below "
            'memory/policy, but includes "memory/policy/policy.h"'
        ],
    )


def test_circles(tmp_path):
    """A header and its source count as one."""
    changes = {
        "memory/first.h": "",
        "memory/first.cpp": '#include "memory/second.h"\n',
        "memory/second.h": '#include "memory/third.h"\n',
        "memory/third.h": '#include "memory/first.h"\n',
    }
    code, lines = check(tmp_path, changes)
    assert code == 1
    assert len(lines) == 1
    assert lines[0].startswith("a circle: ")
    names = lines[0].removeprefix("a circle: ").split(" <- ")
    assert sorted(names[1:]) == [
        f"memory/{x}" for x in ("first", "second", "third")
    ]
    assert names[0] == names[-1]


def test_form_of_project_includes(tmp_path):
    text = '#include <memory/block.h>\n#include "block.h"\n'
    code, lines = check(tmp_path, {"memory/bad.h": text})
    assert code == 1
    assert [line.split(":")[1] for line in lines] == ["1", "2"]
    assert "in quotes" in lines[0]
    assert "relative to the root" in lines[1]


def test_this_project_has_no_violation():
    done = subprocess.run(
        [sys.executable, ROOT / "ci" / "check_includes"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
