"""Builds torch_chameleon: CMake makes the extension, setuptools the package.

Metadata is in pyproject.toml. The environment may set
    MAX_JOBS             compile jobs at once (default: the number of cores)
    CMAKE_ARGS           more arguments for CMake, e.g. -DCHAMELEON_WERROR=OFF
    CHAMELEON_TESTING    1: with torch_chameleon._testing, for the tests
    CHAMELEON_BUILD_DIR  the build folder (default: one per Python and torch
                         under build/, kept between builds)
"""

import os

# A torch.backends entry point of an older build must not load meanwhile.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.egg_info import egg_info

ROOT = Path(__file__).resolve().parent
DEFAULT_TORCH = "2.11.0"  # the minor release that pyproject.toml names
SUPPORTED_MINORS = range(11, 16)  # torch 2.11 .. 2.15


def torch_version():
    """The installed torch, or the default one (source distribution)."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        version = DEFAULT_TORCH
    major, minor = (int(part) for part in version.split(".")[:2])
    if major != 2 or minor not in SUPPORTED_MINORS:
        raise SystemExit(
            f"torch_chameleon: torch {version} is installed, but supported are "
            f"2.{SUPPORTED_MINORS[0]} to 2.{SUPPORTED_MINORS[-1]}; install one "
            f"with: pip install torch=={DEFAULT_TORCH}"
        )
    return major, minor


def find_tool(name):
    """A build tool: beside this Python (pip's copy) or on the PATH."""
    path = os.pathsep.join(
        [sysconfig.get_path("scripts"), os.environ.get("PATH", "")]
    )
    found = shutil.which(name, path=path)
    if found is None:
        raise SystemExit(
            f"torch_chameleon: {name} is missing; install it with: "
            f"{sys.executable} -m pip install {name}"
        )
    return found


class CMakeBuild(build_ext):
    """Builds _C with CMake and Ninja, in a folder that lasts."""

    def build_extension(self, ext):
        tag = sysconfig.get_config_var("SOABI")
        major, minor = torch_version()
        default = ROOT / "build" / f"torch{major}.{minor}-{tag}"
        build = Path(os.environ.get("CHAMELEON_BUILD_DIR", default))
        package = build / "package"
        cmake = find_tool("cmake")
        configure = [
            cmake,
            f"-S{ROOT}",
            f"-B{build}",
            "-GNinja",
            f"-DCMAKE_MAKE_PROGRAM={find_tool('ninja')}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DCHAMELEON_OUTPUT_DIR={package}",
            f"-DCHAMELEON_TESTING={os.environ.get('CHAMELEON_TESTING', '0')}",
            *shlex.split(os.environ.get("CMAKE_ARGS", "")),
        ]
        jobs = os.environ.get("MAX_JOBS", str(os.cpu_count() or 1))
        for command in (
            configure,
            [cmake, "--build", str(build), "--parallel", jobs],
        ):
            if subprocess.run(command, check=False).returncode != 0:
                raise SystemExit(
                    "torch_chameleon: the build failed, see the messages above"
                )
        self.folder = package
        target = Path(self.get_ext_fullpath(ext.name)).parent
        self.products = [
            package / self.get_ext_filename(ext.name.split(".")[-1]),
            package / "lib" / "libchameleon_overlay.so",
            package / "_build_info.py",
            package / "_testing.py",
        ]
        self.copy_products(target)
        self.strip_products(target, build)

    def strip_products(self, target, build):
        """Wheels go without debug information, nine tenths of the bytes.

        What CMake built keeps it, and so do editable installs.
        """
        cache = (build / "CMakeCache.txt").read_text()
        tool = re.search(r"^CMAKE_STRIP:FILEPATH=(.*)$", cache, re.MULTILINE)
        if tool is None or not Path(tool[1]).is_file():
            raise SystemExit(
                "torch_chameleon: CMake found no strip; install binutils"
            )
        libraries = [
            str(target / product.relative_to(self.folder))
            for product in self.products
            if product.suffix == ".so"
        ]
        subprocess.run([tool[1], "--strip-unneeded", *libraries], check=True)

    def copy_products(self, target):
        for product in self.products:
            place = target / product.relative_to(self.folder)
            if not product.is_file():  # what another build left goes, too
                place.unlink(missing_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(product, place)

    def copy_extensions_to_source(self):
        """Editable installs run the package from python/."""
        self.copy_products(ROOT / "python" / "torch_chameleon")


major, minor = torch_version()


class VersionWithTorch(egg_info):
    """Names wheels after the torch that they belong to: 0.1.0+torch2.11.

    Sources belong to none, and are named without.
    """

    def finalize_options(self):
        self.tag_build = "" if "sdist" in sys.argv else f"+torch{major}.{minor}"
        super().finalize_options()


setup(
    ext_modules=[Extension("torch_chameleon._C", sources=[])],
    cmdclass={"build_ext": CMakeBuild, "egg_info": VersionWithTorch},
    install_requires=[f"torch>={major}.{minor},<{major}.{minor + 1}"],
)
