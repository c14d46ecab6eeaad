"""Source distributions are complete; wheels are small, and name their torch."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest
import torch
from support import ROOT

SOURCES = ("backend", "kernels", "memory", "profiler", "ci/cmake", "python")


def setup(folder, *commands, testing=False):
    """Runs setup.py without a trace in the checkout."""
    done = subprocess.run(
        [
            *(sys.executable, "setup.py", "--quiet"),
            *("egg_info", "--egg-base", str(folder), *commands),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "1",
            "CHAMELEON_TESTING": str(int(testing)),
        },
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
    assert "python/torch_chameleon/_testing.py" not in names


@pytest.mark.slow
def test_version_names_the_torch(tmp_path):
    setup(tmp_path)
    (info,) = tmp_path.glob("*.egg-info/PKG-INFO")
    major, minor = torch.__version__.split(".")[:2]
    text = info.read_text()
    assert f"+torch{major}.{minor}\n" in text
    assert "Requires-Dist: torch" in text


def check(wheel):
    return subprocess.run(
        [sys.executable, ROOT / "ci" / "check_wheel", wheel],
        capture_output=True,
        text=True,
        check=False,
    )


def built_wheel(folder, testing):
    """Of what is built, stripped; what was built keeps its symbols."""
    setup(
        folder,
        *("build", "--build-base", str(folder / "build")),
        *("bdist_wheel", "--bdist-dir", str(folder / "files")),
        *("--dist-dir", str(folder)),
        testing=testing,
    )
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    yield built_wheel(folder, testing=False)
    # The checkout's build folder has again what is in its package.
    setup(folder, "build", "--build-base", str(folder / "again"), testing=True)


@pytest.mark.slow
def test_wheels_have_the_bindings_of_tests_where_asked_for(wheel, tmp_path):
    name = "torch_chameleon/_testing.py"
    with zipfile.ZipFile(wheel) as file:
        assert not any("_testing" in each for each in file.namelist())
    asked = built_wheel(tmp_path, testing=True)
    with zipfile.ZipFile(asked) as file:
        assert name in file.namelist()
    complaints = check(asked).stdout
    assert f"{name} is in it" in complaints
    assert "_C.cpython" in complaints
    assert "was built with CHAMELEON_TESTING" in complaints


@pytest.mark.slow
def test_a_wheel(wheel):
    done = check(wheel)
    assert done.returncode == 0, done.stdout
    assert re.search(r": [1-3],\d{3},\d{3} bytes, glibc 2\.\d+", done.stdout)
    built = next((ROOT / "build").glob("torch*/package/_C*.so"))
    with zipfile.ZipFile(wheel) as file:
        packed = file.getinfo(f"torch_chameleon/{built.name}").file_size
    assert packed < built.stat().st_size / 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"torch_chameleon/_build_info.py": None}, "is missing"),
        ({"torch_chameleon/tests/test_x.py": b""}, "is in it"),
        ({"torch_chameleon/noise": os.urandom(4_000_000)}, "over 4,000,000"),
    ],
    ids=["stamp", "tests", "size"],
)
def test_a_wheel_that_is_wrong(wheel, change, complaint, tmp_path):
    wrong = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(wrong, "w") as new:
        for name in old.namelist():
            if name not in change:
                new.writestr(name, old.read(name), zipfile.ZIP_DEFLATED)
        for name, content in change.items():
            if content is not None:
                new.writestr(name, content)
    done = check(wrong)
    assert done.returncode == 1
    assert complaint in done.stdout


@pytest.mark.slow
def test_a_wheel_with_debug_information(wheel, tmp_path):
    wrong = tmp_path / wheel.name
    built = next((ROOT / "build").glob("torch*/package/lib/*.so"))
    name = f"torch_chameleon/lib/{built.name}"
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(wrong, "w") as new:
        for one in old.namelist():
            content = built.read_bytes() if one == name else old.read(one)
            new.writestr(one, content, zipfile.ZIP_DEFLATED)
    done = check(wrong)
    assert f"{name} has debug information" in done.stdout
    other = shutil.copy(wheel, tmp_path / wheel.name.replace("2.", "3.", 1))
    assert "is not named as" in check(other).stdout


def test_the_conda_recipe_says_what_setup_does():
    recipe = (ROOT / "ci" / "conda" / "meta.yaml").read_text()
    project = (ROOT / "pyproject.toml").read_text()
    version = re.search(r'^version = "(.*)"$', project, re.MULTILINE)[1]
    assert f'{{% set version = "{version}" %}}' in recipe
    pinned = re.search(r'"torch==([\d.]+)\.\*"', project)[1]
    assert f'pytorch | default("{pinned}")' in recipe
    for needed in re.findall(r'"(setuptools|cmake)(>=[^"]*)"', project):
        assert f"- {' '.join(needed)}\n" in recipe


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
