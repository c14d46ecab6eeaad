"""Counts what the tests of trust did: faults, random operations, fuzzing.

Usage::

    python tests/count.py build/core build/asan build/tsan     # C++ tests
    python tests/count.py build/core --python                  # and Python's
    python tests/count.py build/core --operations 1000000      # longer ones

Each program of tests/cpp under a build folder that counts is run, also on the
emulated CUDA driver where it can; what tests recorded (`RecordProperty`,
`record_property`) is added up. A test that fails, hangs or leaks stops it: a
count is of what went well. What random tests and fuzzers do by default has a
fixed seed; `--operations` makes those longer that can be.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_NAMES = {
    "faults_injected": "faults injected and survived",
    "random_operations": "random operations against a model",
    "fuzz_executions": "fuzz executions",
    "thread_milliseconds": "threads x milliseconds",
}
_PROGRAMS = {  # and whether they run on the emulated driver as well
    "fuzz_parsers_test": False,
    "memory_extent_map_random_test": False,
    "memory_host_pool_test": False,
    "memory_pager_async_test": True,
    "memory_pager_cuda_test": False,
    "memory_pager_faults_test": True,
    "memory_host_places_test": True,
    "memory_pager_random_test": True,
    "memory_recomputer_random_test": False,
    "memory_pager_stress_test": True,
}
_PYTHON = (
    "tests/integration/faults/test_faults.py",
    "tests/integration/faults/test_soak.py",
)
_LIMIT_S = 3600

Counts = collections.Counter


def run_program(path: Path, device: str, operations: int | None) -> Counts:
    """Runs one C++ test program; what its tests recorded."""
    variables = dict(os.environ, CHAMELEON_TEST_DEVICE=device)
    if operations is not None:
        variables["CHAMELEON_TEST_OPERATIONS"] = str(operations)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        done = subprocess.run(
            [path, "--gtest_brief=1", f"--gtest_output=json:{report}"],
            env=variables,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        if done.returncode != 0:
            sys.exit(f"{path} failed:\n{done.stdout[-4000:]}{done.stderr}")
        suites = json.loads(report.read_text())["testsuites"]
    counts = Counts()
    for suite in suites:
        for test in suite["testsuite"]:
            for name in _NAMES.keys() & test.keys():
                counts[name] += int(test[name])
    return counts


def run_python(select: list[str]) -> Counts:
    """Runs the Python tests that count; what they recorded."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q"),
                *("-o", f"faulthandler_timeout={_LIMIT_S}"),
                *("-o", "junit_family=xunit1"),  # which has properties
                *(f"--junitxml={report}", *select, *_PYTHON),
            ],
            cwd=ROOT,
            timeout=_LIMIT_S,
            check=True,
        )
        tree = ElementTree.parse(report)
    counts = Counts()
    for row in tree.iter("property"):
        if row.get("name") in _NAMES:
            counts[row.get("name")] += int(row.get("value", 0))
    return counts


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("builds", nargs="*", type=Path)
    parser.add_argument("--python", action="store_true")
    parser.add_argument("--slow", action="store_true", help="slow ones too")
    parser.add_argument("--operations", type=int)
    given = parser.parse_args()
    counted: dict[str, Counts] = {}
    for build in given.builds:
        start, counts = time.monotonic(), Counts()
        for name, on_cuda in _PROGRAMS.items():
            path = build / "tests" / "cpp" / name
            if not path.is_file():
                continue
            for device in ("", "cuda") if on_cuda else ("",):
                counts += run_program(path.resolve(), device, given.operations)
        counts["seconds"] = round(time.monotonic() - start)
        counted[build.name] = counts
    if given.python:
        start = time.monotonic()
        select = [] if given.slow else ["-m", "not slow"]
        counts = run_python(select)
        counts["seconds"] = round(time.monotonic() - start)
        counted["python"] = counts
    print("| count | " + " | ".join(counted) + " |")
    print("|---|" + "---:|" * len(counted))
    for name, text in [*_NAMES.items(), ("seconds", "seconds")]:
        cells = [each[name] for each in counted.values()]
        if any(cells):
            row = " | ".join(f"{cell:,}" if cell else "" for cell in cells)
            print(f"| {text} | {row} |")


if __name__ == "__main__":
    main()
