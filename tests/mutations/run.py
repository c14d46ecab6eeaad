"""Plants each bug of planted.py in a copy of the sources and runs the tests.

Usage::

    python tests/mutations/run.py --check            # do they still apply?
    python tests/mutations/run.py                    # all of them
    python tests/mutations/run.py --core             # those without torch
    python tests/mutations/run.py --only "wait" -v   # those named so

Only tests of the default run count. The likely ones run first; where none of
these fails, all do. A bug that nothing finds is a missing test, and the exit
status is 1. The copy and its builds stay in --scratch for the next run.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from planted import MUTATIONS, Mutation
from planting import Place, places, plant, problems

ROOT = Path(__file__).resolve().parents[2]
_TABLE = re.compile(r"(<!-- table: begin -->\n).*(<!-- table: end -->)", re.S)
_JOBS = str(os.cpu_count() or 2)
_CTEST_FAILURE = re.compile(r"^\s*\d+ - (\S+) .*\(([^()]*)\)$", re.M)


class Copy:
    """A copy of the working tree, and what is built in it."""

    def __init__(self, root: Path, verbose: bool) -> None:
        self.root = root
        self.verbose = verbose

    def refresh(self) -> None:
        """Copies what differs, so that little is built again."""
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        for name in listed.stdout.splitlines():
            source, target = ROOT / name, self.root / name
            if not source.is_file():
                continue
            content = source.read_bytes()
            if not target.is_file() or target.read_bytes() != content:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
                target.touch()

    def run(self, *command: str, limit_s: int = 3600) -> tuple[bool, str]:
        """Whether the command succeeded in time, and what it printed."""
        variables = {
            **os.environ,
            "PYTHONPATH": f"{self.root}/python:{self.root}/tests",
            "OMP_NUM_THREADS": "1",
        }
        try:
            done = subprocess.run(
                command,
                cwd=self.root,
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            output = late.stdout or b""
            text = output.decode(errors="replace")
            return False, text + "\n(ran out of time)"
        if self.verbose:
            print(f"$ {' '.join(command)}\n{done.stdout[-2000:]}", flush=True)
        return done.returncode == 0, done.stdout

    def build(self, kind: str, *targets: str) -> None:
        """Builds "core" or "torch"; stops where that fails."""
        folder = f"build/{kind}"
        if not (self.root / folder / "build.ninja").is_file():
            options = {
                "core": ["-DCHAMELEON_BUILD_TORCH=OFF"],
                "torch": [
                    f"-DPython_EXECUTABLE={sys.executable}",
                    "-DCHAMELEON_TESTING=ON",
                ],
            }[kind]
            tests = "ON" if kind == "core" else "OFF"
            self._must(
                *("cmake", "-S", ".", "-B", folder, "-G", "Ninja", *options),
                f"-DCHAMELEON_BUILD_TESTS={tests}",
                "-DCHAMELEON_WERROR=OFF",
            )
        self._must("cmake", "--build", folder, "--parallel", _JOBS, *targets)

    def _must(self, *command: str) -> None:
        good, output = self.run(*command)
        if not good:
            sys.exit(f"{' '.join(command)} failed:\n{output[-4000:]}")


# ---- tests that fail --------------------------------------------------------


def core_failure(copy: Copy, likely: tuple[str, ...] | None) -> str | None:
    """The first C++ test that fails; of all programs, or of these."""
    chosen: list[str] = []
    if likely is None:
        copy.build("core")
    else:
        copy.build("core", "--target", *likely)
        chosen = ["-R", f"^({'|'.join(likely)})\\."]
    good, output = copy.run(
        *("ctest", "--test-dir", "build/core", "--parallel", _JOBS),
        *("--stop-on-failure", "--timeout", "60", "--no-tests=error", *chosen),
    )
    if good:
        return None
    failed = _CTEST_FAILURE.search(output)
    if failed is None:
        sys.exit(f"ctest failed, and no test did:\n{output[-2000:]}")
    how = "" if failed[2] in ("Failed", "Subprocess aborted") else failed[2]
    return f"`{failed[1]}`" + (f" ({how.lower()})" if how else "")


def torch_failure(copy: Copy, likely: tuple[str, ...] | None) -> str | None:
    """The first Python test that fails; of all folders, or of these files."""
    copy.build("torch", "--target", "_C", "chameleon_overlay")
    good, output = copy.run(
        *(sys.executable, "-m", "pytest", "-x", "-v", "-m", "not slow"),
        *(likely or ()),
    )
    if good:
        return None
    for line in output.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            test = line.split(" ", 1)[1].split(" - ")[0]
            return f"`{test}`"
    begun = [line for line in output.splitlines() if "::" in line]
    if not begun:
        sys.exit(f"pytest failed, and no test did:\n{output[-2000:]}")
    return f"`{begun[-1].split()[0]}` (crash)"


def catch(copy: Copy, mutation: Mutation, place: Place) -> str | None:
    """Plants one bug, finds a test that fails, and takes it out again."""
    failure = torch_failure if place.needs_torch else core_failure
    path = copy.root / place.file
    good = path.read_text()
    path.write_text(plant(good, place, mutation))
    try:
        return failure(copy, mutation.likely) or failure(copy, None)
    finally:
        path.write_text(good)


# ---- all of them ------------------------------------------------------------


def run_all(
    copy: Copy,
    chosen: list[Mutation],
    where: dict[str, Place],
    write: bool,
) -> bool:
    """Whether each was caught; first the likely tests have to pass."""
    for needs_torch in (False, True):
        likely = {
            name
            for each in chosen
            if where[each.marker].needs_torch == needs_torch
            for name in each.likely
        }
        failure = torch_failure if needs_torch else core_failure
        if likely and (failed := failure(copy, tuple(sorted(likely)))):
            sys.exit(f"{failed} fails without any planted bug")
    caught: dict[str, str | None] = {}
    for each in chosen:
        start = time.monotonic()
        caught[each.name] = catch(copy, each, where[each.marker])
        took = time.monotonic() - start
        what = caught[each.name] or "NOTHING"
        print(f"{each.name}: {what} ({took:.0f} s)", flush=True)
        if write:
            write_table(caught, where)
    return all(caught.values())


def write_table(caught: dict[str, str | None], where: dict[str, Place]) -> None:
    """Puts the result into README.md; lines of others stay as they are."""
    readme = Path(__file__).parent / "README.md"
    text = readme.read_text()
    known = dict(re.findall(r"^\| ([^|]+) \| `[^|]+` \| (.+) \|$", text, re.M))
    lines = ["| planted bug | in | caught by |", "|---|---|---|"]
    for each in MUTATIONS:
        by = caught.get(each.name) or known.get(each.name, "not run")
        file = where[each.marker].file
        lines.append(f"| {each.name} | `{file}` | {by} |")
    table = "\n".join(lines) + "\n"
    readme.write_text(_TABLE.sub(lambda m: m[1] + table + m[2], text))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--core", action="store_true")
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--write", action="store_true", help="README.md")
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument(
        "--scratch", type=Path, default=ROOT / "build" / "mutations"
    )
    given = parser.parse_args()
    if wrong := problems(MUTATIONS, ROOT):
        print("\n".join(wrong))
        return 1
    where = {marker: found[0] for marker, found in places(ROOT).items()}
    chosen = [
        each
        for each in MUTATIONS
        if given.core == given.torch
        or where[each.marker].needs_torch == given.torch
        if not given.only or any(part in each.name for part in given.only)
    ]
    if given.check:
        print(f"{len(chosen)} planted bugs apply")
        return 0
    copy = Copy(given.scratch.resolve(), given.verbose)
    copy.refresh()
    return 0 if run_all(copy, chosen, where, given.write) else 1


if __name__ == "__main__":
    sys.exit(main())
