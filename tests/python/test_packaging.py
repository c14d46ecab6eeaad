"""Source distributions are complete; wheels are named after their torch."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
SOURCES = ("backend", "kernels", "memory", "profiler", "ci/cmake", "python")


def setup(folder, *commands):
    """Runs setup.py without a trace in the checkout."""
    done = subprocess.run(
        [
            *(sys.executable, "setup.py", "--quiet"),
            *("egg_info", "--egg-base", str(folder), *commands),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_sources_are_complete(tmp_path):
    setup(tmp_path, "sdist", "--dist-dir", str(tmp_path))
    (archive,) = tmp_path.glob("*.tar.gz")
    assert "+" not in archive.name
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    wanted = {"CMakeLists.txt", "pyproject.toml", "setup.py"} | {
        str(path.relative_to(ROOT))
        for folder in SOURCES
        for suffix in ("*.h", "*.cpp", "*.inc", "*.in", "*.cmake", "*.txt")
        for path in (ROOT / folder).rglob(suffix)
        if "egg-info" not in str(path)
    }
    assert wanted - names == set()
    assert "python/torch_chameleon/_build_info.py" not in names


@pytest.mark.slow
def test_version_names_the_torch(tmp_path):
    setup(tmp_path)
    (info,) = tmp_path.glob("*.egg-info/PKG-INFO")
    major, minor = torch.__version__.split(".")[:2]
    text = info.read_text()
    assert f"+torch{major}.{minor}\n" in text
    assert "Requires-Dist: torch" in text


@pytest.mark.slow
def test_smoke_suite():
    """What ci/versions runs, in this release."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "smoke.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert f"| {torch.__version__} |" in done.stdout
