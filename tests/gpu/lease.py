"""One lease of a GPU: what is worth knowing, in the order of its worth.

    python lease.py [--on cuda|cpu|emulated] [--seconds S] [--out FOLDER]
        [--bin FOLDER] [row...]

Runs each row as processes of their own, within the seconds, and ends by itself.
All that they say is in FOLDER as soon as it is known: results.jsonl (one JSON
line a finding), log.txt, traces.zip (steps, for their bounds) and <gpu>.json
(lease_results.py). The exit status is 1 if a row failed or a bit differs. Rows:

    probe       what is taken for granted of the driver; the link
    first       the device starts; what must be refused is refused
    doctor      the package's own self-test
    bits        trainings at k = 1, 2, 4, 4 beside native
    operators   one by one beside native, in a shuffled order
    optimizer_ops  fused ones on the CPU beside CUDA's: bits, GB/s
    pin         GB/s of host memory that is pinned, by 1, 4 and 16 threads
    scripts     that say "cuda", as they are, under `run`
    silent_writers  ops that write what their schema does not say
    rest        the operators that there was no time for
    TRAINING/WAY/BUDGET
                times a training. WAY as in ways.py; BUDGET is 0 (no limit), k
                (its peak as it is over the budget) or bytes, as in 75GB.
                With a budget it runs until its plan is settled or its time is
                up, and says which
    two/TRAINING/WAY/BUDGET
                the same in two processes at a time, each within so many bytes
    bits/NAME,NAME, operators/PREFIX
                only these

What a place has not is left out, and says why: a way that is not installed, a
model that device and host cannot hold. So is a way of others in more memory
than it has shown to need: it takes the same there.

ROW+ROW runs both at a time. Without a row: all of `rows.by_worth()`. `--on cpu`
and `--on emulated` try that where no GPU is, at toy size: none of it is a
measurement. `--bin` has the programs that `ci/gpu pack` builds.
"""

import argparse
import itertools
import json
import pathlib
import resource
import shutil
import sys
import tempfile
import zipfile

import places
import rows
from deadline import ENDED, Deadline, Step
from lease_results import Results, machine

HERE = places.ROOT / "tests"
POINT = HERE / "benchmarks/training/training_point.py"
PARTS = (2, 4, 8, 16)  # of a batch, until they fit


def is_point(row: str) -> bool:
    """Whether it is TRAINING/WAY/BUDGET."""
    return row.partition("/")[0] not in rows.KINDS and row.count("/") == 2


class Lease:
    """Turns rows into steps, and runs them."""

    def __init__(
        self, options: argparse.Namespace, scratch: pathlib.Path
    ) -> None:
        self._place, self._bin = options.on, options.bin
        self._out, self._scratch = options.out, scratch
        self._timed: set[str] = set()
        said = places.ROOT / "packed.json"
        packed = json.loads(said.read_text()) if said.exists() else {}
        facts = machine(options.on, packed)
        before = places.ROOT / "tests/benchmarks/results"
        self.results = Results(options.out, facts, before)
        print(json.dumps(facts), flush=True)
        self._deadline = Deadline(options.out, options.seconds, self._hear)

    def run(self, groups: list[list[str]]) -> bool:
        """Runs groups of rows; whether nothing failed."""
        for group in groups:
            points = [row for row in group if is_point(row)]
            steps = [
                step
                for row in group
                if row not in points and self._is_there(row)
                for step in self._steps(row)
            ]
            self._deadline.run(*steps)
            for row in points:
                self._point(row)
        self._say_what_became()
        return not self.results.failed

    def _hear(self, row: dict) -> None:
        self.results.add(row)
        keys = ("workload", "k", "compared", "different", "rc", "seconds")
        keys += ("left_out", "operators", "operator")
        shown = {key: row[key] for key in keys if row.get(key) is not None}
        if "point" in row:
            figures = row["point"]
            shown["ms"] = figures.get("ms", figures.get("error"))
            if "settled" in figures:
                shown["settled"] = figures["settled"]
        if shown:
            print(row["step"], json.dumps(shown), flush=True)

    def _is_there(self, row: str) -> bool:
        """Whether the place has what a row asks; else it is left out."""
        kind = row.partition("/")[0]
        why = rows.NOT_THERE[self._place].get(kind)
        if why is not None:
            self._deadline.leave_out(row, why)
        return why is None

    def _step(self, name: str, *command: object, **more) -> Step:
        """A step on the place's device, or with is_plain=True of the CPU's."""
        own = (
            {}
            if more.pop("is_plain", False)
            else places.environment(self._place, self._bin / "emulated_cuda.so")
        )
        return Step(
            name,
            [str(part) for part in command],
            more.pop("limit_s", rows.limit_s(name, self._place)),
            environment={
                **places.common_environment(self._place),
                **own,
                **more.pop("variables", {}),
            },
            **more,
        )

    def _steps(self, row: str) -> list[Step]:
        kind, _, which = row.partition("/")
        if kind in ("probe", "pin"):
            # An emulated driver ends the process for what a true one refuses.
            quick = ["--quick"] if self._place == "emulated" else []
            program = {"probe": "driver_probe", "pin": "pin_probe"}[kind]
            return [self._step(kind, self._bin / program, *quick)]
        if kind == "optimizer_ops":
            script = HERE / "gpu/optimizer_ops.py"
            command = (sys.executable, "-W", "ignore", script, self._place)
            return [self._step(kind, *command)]
        if kind == "two":
            training, way, given = which.split("/")
            budget = self._budget_bytes(training, given)
            if budget is None:
                self._deadline.leave_out(
                    row, self.results.why_no_peak(training)
                )
                return []
            return [
                self._point_step(f"{row} {side}", training, way, budget)
                for side in ("one", "other")
            ]
        if kind == "first":
            scripts = HERE / "python/as_cuda"
            return [
                self._step(name, sys.executable, scripts / f"{script}.py")
                for name, script in rows.FIRST.items()
            ]
        if kind == "scripts":
            names = [which] if which else []
            script = HERE / "gpu/scripts.py"
            command = (sys.executable, script, self._place, *names)
            return [self._step(row, *command, is_plain=True)]
        if kind == "silent_writers":
            script = HERE / "gpu/silent_writers.py"
            # One process of native PyTorch, which asks chameleon in another.
            return [
                self._step(
                    kind,
                    *(sys.executable, "-W", "ignore", script),
                    *("--on", self._place),
                    *("--seconds", rows.limit_s(kind, self._place) - 30),
                )
            ]
        if kind == "doctor":
            code = (
                f"import places; places.begin({self._place!r}); "
                "from torch_chameleon.doctor import main; "
                "raise SystemExit(main([]))"
            )
            return [self._step("doctor", sys.executable, "-c", code)]
        if kind == "bits":
            names = which.split(",") if which else list(rows.WORKLOADS)
            for name, why in rows.LEFT_OUT[self._place].items():
                if name in names:
                    names.remove(name)
                    self._deadline.leave_out(f"bits/{name}", why)
            return self._sides(
                row, "compare.py", "", names, variables=rows.BITS_ENVIRONMENT
            )
        limit_s = rows.limit_s(row, self._place)
        limit_s = min(limit_s, self._deadline.left_s()) - 5
        prefixes = [which] if which else rows.OPERATORS[self._place]
        return self._sides(
            row, "operators.py", "_operators", [max(1.0, limit_s), *prefixes]
        )

    def _sides(
        self, row: str, script: str, journal: str, arguments: list, **more
    ) -> list[Step]:
        """Native and here, at a time."""
        kind = "operators" if row == "rest" else row.partition("/")[0]
        folder = self._scratch / kind
        folder.mkdir(exist_ok=True)
        (folder / ENDED).unlink(missing_ok=True)
        both = []
        for side in ("native", "here"):
            is_native = side == "native"
            both.append(
                self._step(
                    f"{row} {side}",
                    *(sys.executable, "-W", "ignore", HERE / "gpu" / script),
                    *(side, folder, self._place, *arguments),
                    limit_s=rows.limit_s(row, self._place),
                    journal=folder / f"{side}{journal}.journal",
                    tries=5,
                    ended=folder / ENDED if is_native else None,
                    **more,
                )
            )
        return both

    def _point(self, row: str) -> None:
        """Times a training, unless another row needed it before."""
        if row in self._timed:
            return
        self._timed.add(row)
        training, way, given = row.split("/")
        budget = self._budget_bytes(training, given)
        if budget is None:
            self._deadline.leave_out(row, self.results.why_no_peak(training))
            return
        less = self.results.fits_in_less(row, budget)
        if less is not None:
            self._deadline.leave_out(row, f"it fits {less}, and takes the same")
            return
        is_parted = way == "micro_batch"
        for each in [f"{way}_{n}" for n in PARTS] if is_parted else [way]:
            self._run_point(row, training, each, budget)
            if "out of memory" not in self.results.point(row).get("error", ""):
                break

    def _budget_bytes(self, training: str, given: str) -> int | None:
        """Bytes that a row's BUDGET is; None: its peak is not known."""
        if given.endswith("B"):
            unit = {"MB": 10**6, "GB": 10**9}[given[-2:]]
            return int(float(given[:-2]) * unit)
        k = float(given)
        if k == 0:
            return 0
        for way in ("in_memory", "chameleon"):
            row = f"{training}/{way}/0"
            if not self.results.peak_bytes(training):
                self._point(row)
            if row in self.results.left_out:
                return None
        return int(self.results.peak_bytes(training) / k) or None

    def _run_point(
        self, row: str, training: str, way: str, budget: int
    ) -> None:
        left_s = min(rows.limit_s(row, self._place), self._deadline.left_s())
        if left_s < rows.LEAST:
            self._deadline.leave_out(row, "no time was left")
            return
        trace = self._scratch / "step.jsonl.gz"
        self.results.begin_point(row, budget)
        self._deadline.run(
            self._point_step(row, training, way, budget, str(trace))
        )
        if trace.exists():
            name = f"{row.replace('/', ' ')}.jsonl.gz"
            with zipfile.ZipFile(self._out / "traces.zip", "a") as archive:
                archive.write(trace, name)
            trace.unlink()

    def _point_step(
        self, row: str, training: str, way: str, budget: int, trace: str = ""
    ) -> Step:
        """A training that is timed, in what time there is."""
        limit_s = rows.limit_s(row, self._place)
        limit_s = min(limit_s, self._deadline.left_s())
        is_ours = way == "chameleon"
        profile = row in rows.PROFILED
        is_small = self._place != "cuda"
        arguments = {
            "training": training,
            "way": way,
            "place": self._place,
            "budget": budget,
            "small": is_small,
            # Then it writes figures and trace, and runs the profiled step.
            "seconds": limit_s * (0.6 if profile else 0.8),
            "trace": trace if is_ours else "",
            "profile": profile,
            "all_steps": 0 if is_small else rows.ALL_STEPS.get(row, 0),
        }
        return self._step(
            row,
            *(sys.executable, "-W", "ignore", POINT, json.dumps(arguments)),
            is_plain=not is_ours,
            limit_s=limit_s,
            variables=rows.WAY_ENVIRONMENT.get(way, {}),
        )

    def _say_what_became(self) -> None:
        failed, left = self.results.failed, self.results.left_out
        for what, which in (("failed", failed), ("left out", left)):
            for row, why in which.items():
                print(f"{what}: {row}: {why}")
        steps = self.results.all["steps"].values()
        good = sum(step.get("rc") == 0 for step in steps)
        print(f"{good} passed, {len(failed)} failed, {len(left)} left out")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--on", default="cuda", choices=places.PLACES)
    add("--seconds", type=float, default=480.0)
    add("--out", type=pathlib.Path, default=pathlib.Path("build/lease"))
    add("--bin", type=pathlib.Path, default=places.ROOT / "bin")
    add("row", nargs="*")
    options = parser.parse_args()
    for row in itertools.chain(*(each.split("+") for each in options.row)):
        if row.partition("/")[0] not in rows.KINDS and not is_point(row):
            parser.error(
                f"no such row: {row!r}; there are {', '.join(rows.KINDS)} and "
                "TRAINING/WAY/BUDGET"
            )
        if row.startswith("two") and row.count("/") != 3:
            parser.error(f"{row!r}: it is two/TRAINING/WAY/BUDGET")
    options.out.mkdir(parents=True, exist_ok=True)
    # A dump of what dies would write all that it has pinned.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    groups = [row.split("+") for row in options.row]
    groups = groups or rows.by_worth(options.on)
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="lease-"))
    try:
        return 0 if Lease(options, scratch).run(groups) else 1
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
