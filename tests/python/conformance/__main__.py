"""Runs every conformance test, in parts, and writes what it counted.

python -m conformance [--parts N] [--jobs N] [--minutes N] [--fresh] [FOLDER]

Each part is a process. A part that has passed is not run again: a run that was
interrupted, or stopped after some minutes, goes on where it was. When all have
passed, the counts go into RESULTS.md beside this file. FOLDER
(build/conformance) has each part's counts and output.
"""

import argparse
import concurrent.futures
import datetime
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from conformance.harness import counting

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
NO_TESTS = 5  # pytest's exit status


class Run:
    """A folder of parts.

    Args:
        folder: Where each part's counts and output go.
        parts: How many there are.
    """

    def __init__(self, folder, parts):
        self.folder, self.parts = Path(folder), parts
        self._printing = threading.Lock()

    def file(self, part, kind):
        return self.folder / f"{part}-of-{self.parts}.{kind}"

    def record(self, part):
        """What a part left behind; None if it did not end."""
        file = self.file(part, "json")
        return json.loads(file.read_text()) if file.exists() else None

    def passed(self, part):
        record = self.record(part)
        return bool(record) and record["exit status"] in (0, NO_TESTS)

    def left(self):
        """The parts that have not passed."""
        return [p for p in range(1, self.parts + 1) if not self.passed(p)]

    def run(self, part, deadline):
        """Runs one part, unless it is too late."""
        if deadline is not None and time.monotonic() > deadline:
            return
        self.file(part, "json").unlink(missing_ok=True)
        environment = {
            "CONFORMANCE_PART": f"{part}/{self.parts}",
            "CONFORMANCE_COUNTS": str(self.file(part, "json").resolve()),
            "OMP_NUM_THREADS": "1",
        }
        options = ["-q", "-m", "not sample"]
        with self.file(part, "log").open("w") as log:
            subprocess.run(
                [sys.executable, "-m", "pytest", *options, str(HERE)],
                env={**os.environ, **environment},
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            )
        self._report(part)

    def _report(self, part):
        record = self.record(part)
        with self._printing:
            if record is None:
                print(f"part {part}: broke off", flush=True)
            else:
                tests, seconds = record["tests"], record["cpu seconds"]
                said = ", ".join(f"{n} {what}" for what, n in tests.items())
                print(
                    f"part {part}: {said}, {seconds:.0f} s of CPU", flush=True
                )
            if not self.passed(part):
                log = self.file(part, "log").read_text().splitlines()
                print("\n".join(log[-40:]), flush=True)


def summary(records):
    """A sentence about a run."""
    hours = sum(record["cpu seconds"] for record in records) / 3600
    commits = sorted({record["commit"] for record in records})
    today = datetime.date.today().isoformat()
    return (
        f"Finished {today}, {len(records)} parts, {hours:.1f} hours of CPU, "
        f"at {', '.join(commits)}."
    )


def main():
    parser = argparse.ArgumentParser("conformance", description=__doc__)
    parser.add_argument("folder", nargs="?", default="build/conformance")
    parser.add_argument("--parts", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--minutes", type=float, help="start no part later")
    parser.add_argument("--fresh", action="store_true", help="start afresh")
    options = parser.parse_args()
    if options.fresh:
        shutil.rmtree(options.folder, ignore_errors=True)
    run = Run(options.folder, options.parts)
    run.folder.mkdir(parents=True, exist_ok=True)
    started, deadline = time.monotonic(), None
    if options.minutes is not None:
        deadline = started + 60 * options.minutes
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as jobs:
        list(jobs.map(lambda part: run.run(part, deadline), run.left()))
    finish(run, time.monotonic() - started)


def finish(run, seconds):
    """Writes the tables if all parts have passed; says how it went."""
    left = run.left()
    numbers = range(1, run.parts + 1)
    records = [r for r in map(run.record, numbers) if r is not None]
    files = [run.file(p, "json") for p in numbers if run.record(p) is not None]
    counts = counting.totals(files)
    print(counting.table(counts, dtypes=False))
    said = summary(records)
    if not left:
        by_suite = counting.table(counts, dtypes=False)
        by_dtype = counting.table(counts, dtypes=True)
        counting.write(
            HERE / "RESULTS.md", f"{said}\n\n{by_suite}\n\n{by_dtype}"
        )
    tests = {
        what: sum(record["tests"].get(what, 0) for record in records)
        for what in ("passed", "failed", "skipped")
    }
    if left:
        said = f"{len(left)} of {run.parts} parts are left."
    print(said)
    outcomes = ", ".join(f"{number} {what}" for what, number in tests.items())
    print(f"==== {outcomes} in {seconds:.1f}s ====")
    sys.exit(bool(left))


if __name__ == "__main__":
    main()
