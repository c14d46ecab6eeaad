"""The driver's functions that we look up are in a true libcuda.

The library comes from Debian's package, which is downloaded and unpacked into a
temporary folder, never installed. It needs no GPU to say what it has: a row of
the table that names a function or a version that no driver knows shows here,
and not on the first GPU.
"""

import re
import shutil
import subprocess

import emulated_cuda
import pytest
from support import ROOT

_PACKAGE = "libcuda1"
# Not among a machine's usual sources: its licence is not free.
_SOURCE = "deb http://deb.debian.org/debian bookworm non-free\n"
_LOOK_UP = r"""
#include <cstdio>
#include <dlfcn.h>

#include "backend/runtime/cuda/cuda_driver.h"

int main(int, char** arguments) {
  void* const library = dlopen(arguments[1], RTLD_NOW);
  if (library == nullptr) {
    std::printf("error %s\n", dlerror());
    return 1;
  }
  const auto find = reinterpret_cast<PFN_cuGetProcAddress_v12000>(
      dlsym(library, "cuGetProcAddress_v2"));
  const auto version_of = reinterpret_cast<PFN_cuDriverGetVersion_v2020>(
      dlsym(library, "cuDriverGetVersion"));
  int driver = 0;
  version_of(&driver);
  std::printf("driver %d\n", driver);
  const auto look_up = [&](const char* kind, const char* name, int version) {
    void* function = nullptr;
    const CUresult result =
        find(name, &function, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM,
             nullptr);
    std::printf("%s %s %d %d\n", kind, name, version,
                result == CUDA_SUCCESS && function != nullptr);
  };
#define REQUIRED(name, version) look_up("required", #name, version);
#define OPTIONAL(name, version) look_up("optional", #name, version);
  CHAMELEON_CUDA_CALLS(REQUIRED)
  CHAMELEON_CUDA_OPTIONAL_CALLS(OPTIONAL)
  REQUIRED(cuNoSuchFunction, 2000)
  return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The path of Debian's libcuda, unpacked."""
    for tool in ("apt-get", "dpkg", "c++"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    if emulated_cuda.cuda_headers() is None:
        pytest.skip(emulated_cuda.NEEDS)
    folder = tmp_path_factory.mktemp("libcuda")
    (folder / "lists/partial").mkdir(parents=True)
    (folder / "sources.list").write_text(_SOURCE)
    settings = [
        f"Dir::Etc::SourceList={folder}/sources.list",
        "Dir::Etc::SourceParts=/dev/null",
        f"Dir::State::Lists={folder}/lists",
        f"Dir::Cache={folder}/cache",
    ]
    apt = ["apt-get", *(word for each in settings for word in ("-o", each))]
    for command in (["update"], ["download", _PACKAGE]):
        try:
            done = subprocess.run(
                [*apt, *command],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        except subprocess.TimeoutExpired:
            pytest.skip(f"{_PACKAGE} was not downloaded within a minute")
    packages = list(folder.glob("*.deb"))
    if not packages:
        pytest.skip(f"{_PACKAGE} cannot be downloaded here: {why}")
    subprocess.run(["dpkg", "-x", packages[0], folder / "root"], check=True)
    found = sorted(folder.glob("root/**/libcuda.so.*"))
    assert found, "the package has no libcuda"
    return found[0].resolve()


@pytest.mark.slow
def test_every_row_resolves(library, tmp_path):
    source = tmp_path / "rows.cpp"
    source.write_text(_LOOK_UP)
    program = tmp_path / "rows"
    headers = emulated_cuda.cuda_headers()
    subprocess.run(
        [
            *("c++", "-std=c++20", f"-I{ROOT}", "-isystem", headers),
            *(source, "-o", program, "-ldl"),
        ],
        check=True,
    )
    done = subprocess.run(
        [program, library], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    driver = int(re.search(r"^driver (\d+)$", done.stdout, re.M)[1])
    assert driver >= 12000
    rows = re.findall(r"^(\w+) (\w+) (\d+) ([01])$", done.stdout, re.M)
    missing = {name for kind, name, _, found in rows if found == "0"}
    # The look-up itself can say no, and an older driver has less to offer.
    expected = {"cuNoSuchFunction"} | {
        name
        for kind, name, version, _ in rows
        if kind == "optional" and int(version) > driver
    }
    assert missing == expected
    assert len(rows) > 30
