# Shared by the scripts of this folder: sourced, never run.
# All state is in .venv/ and build/ of the checkout, both ignored by git.
# shellcheck shell=bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ROOT=$PWD
VENV=$ROOT/.venv
# Jobs at once: one a core, and each may take 2 GiB.
JOBS=${MAX_JOBS:-$(awk -v cores="$(nproc)" '/MemAvailable/ {
  jobs = int($2 / 2097152); if (jobs > cores) jobs = cores
  print jobs < 1 ? 1 : jobs }' /proc/meminfo)}
export MAX_JOBS=$JOBS
readonly TORCH_PIN="torch==2.11.0" # where no supported torch is importable

die() {
  echo "error: $*" >&2
  exit 1
}

# Prints this script's own leading comment, without the shebang line.
usage() {
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
}

# Prints "torch" if the Python given has a supported torch, "plain" if one can
# be installed for it, and nothing otherwise.
kind_of_python() {
  "$1" 2>/dev/null - <<'END' || true
import importlib.metadata, sys
if (3, 10) <= sys.version_info[:2] <= (3, 14):
    try:
        major, minor = importlib.metadata.version("torch").split(".")[:2]
        print("torch" if major == "2" and 11 <= int(minor) <= 15 else "plain")
    except importlib.metadata.PackageNotFoundError:
        print("plain")
END
}

# Sets BASE to the Python that .venv is made from.
find_python() {
  local candidate kind
  BASE=
  for candidate in ${PYTHON:-} python3 python3.{13,12,11,10,14}; do
    kind=$(kind_of_python "$candidate")
    if [[ $kind == torch ]]; then
      BASE=$(command -v "$candidate")
      return
    fi
    [[ $kind == plain && -z $BASE ]] && BASE=$(command -v "$candidate")
  done
  [[ -n $BASE ]] || die "Python 3.10 to 3.14 is needed; on Debian or Ubuntu" \
    "install it with: apt-get install python3 python3-dev python3-venv"
}

compiles() {
  "${CXX:-c++}" -std=c++20 -fsyntax-only -x c++ - 2>/dev/null
}

# Names every missing part of the system at once. Arguments: extra parts.
need_system_parts() {
  local python=$1 include missing=()
  compiles <<<'#include <concepts>
    template <std::integral T> T f(T x) { return x; }' || missing+=(g++)
  include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  [[ -f $include/Python.h ]] || missing+=(python3-dev)
  "$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
  if [[ ${2:-} == gtest && ${missing[*]} != *g++* ]]; then
    compiles <<<'#include <gtest/gtest.h>' || missing+=(libgtest-dev)
  fi
  ((${#missing[@]} == 0)) || die "missing on this system: ${missing[*]}" \
    "(g++ means any C++20 compiler); on Debian or Ubuntu install with:" \
    "apt-get install ${missing[*]}"
}

# Makes .venv, with a supported torch and the build tools, unless it is there.
# A supported torch that python3 imports already is used, not installed again.
make_venv() {
  [[ -f $VENV/.ready ]] && return
  [[ -n ${BASE:-} ]] || find_python
  need_system_parts "$BASE" "$@"
  local tools=("setuptools>=77,<82" wheel)
  command -v cmake >/dev/null || tools+=("cmake>=3.22")
  command -v ninja >/dev/null || tools+=(ninja)
  "$BASE" -m venv --clear "$VENV"
  if [[ $(kind_of_python "$BASE") == torch ]]; then
    echo "Using the torch of $BASE"
    # Works for any base, also one that is a virtual environment itself.
    "$BASE" - "$VENV" <<'END'
import pathlib, sys, sysconfig
paths = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
site = sysconfig.get_path("purelib", vars={"base": sys.argv[1]})
lines = [f"import site; site.addsitedir({path!r})\n" for path in paths]
pathlib.Path(site, "base_packages.pth").write_text("".join(lines))
END
  else
    echo "Installing $TORCH_PIN into .venv (about 2.7 GB, once)"
    tools+=("$TORCH_PIN")
  fi
  local quiet=(--quiet)
  [[ -t 1 ]] && quiet=() # a person sees the progress
  "$VENV/bin/python" -m pip install "${quiet[@]}" --disable-pip-version-check \
    "${tools[@]}"
  touch "$VENV/.ready"
}

# Builds and installs the package, editable, with the extras given, and with
# what its tests need. The build comes first and by itself: pip would hide its
# progress.
install_package() {
  local -x CHAMELEON_TESTING=1
  "$VENV/bin/python" setup.py --quiet build_ext
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
    --no-build-isolation --editable ".[$1]"
}

# Where setup.py builds the package, for the Python and the torch of .venv.
package_build_folder() {
  if [[ ${CHAMELEON_BUILD_DIR:-} ]]; then
    echo "$CHAMELEON_BUILD_DIR"
    return
  fi
  "$VENV/bin/python" - <<'END'
import sysconfig
from importlib import metadata
major, minor = metadata.version("torch").split(".")[:2]
print(f"build/torch{major}.{minor}-{sysconfig.get_config_var('SOABI')}")
END
}

# Builds a wheel of SOURCES, a folder or an archive, into FOLDER, checks it, and
# names it after the oldest system that it runs on.
build_wheel() {
  local python=$1 sources=$2 folder=$3 made
  made=$(mktemp -d)
  "$python" -m pip wheel "$sources" --quiet --no-deps --no-build-isolation \
    --disable-pip-version-check --wheel-dir "$made"
  "$python" "$ROOT/ci/check_wheel" --retag "$made"/torch_chameleon-*.whl
  mkdir -p "$folder"
  mv "$made"/*.whl "$folder"
  rmdir "$made"
}

# Puts the tools of .venv first.
use_venv() {
  export PATH=$VENV/bin:$PATH
}
