"""What a lease found, as one file that a table can be made of.

{"machine": {...}, "points": {"TRAINING WAY BUDGET": {...}}, "bits": {...},
"operators": {...}, "scripts": {...}, "probe": [...], "optimizer_ops": [...],
"pin": [...], "silent_writers": [...], "two": {...}, "steps": {...}}. It is
written anew after each row that changes it, and goes on with what the file had
before. `is_gpu` of the machine says whether anything in it is a measurement of
a GPU.
"""

import contextlib
import datetime
import json
import os
import pathlib
import platform
import shutil
import subprocess
from importlib import metadata

import scripts

FIELDS = ("name", "driver_version", "memory.total", "pcie.link.gen.max")
FIELDS += ("pcie.link.width.max",)


def today() -> str:
    return datetime.date.today().isoformat()


def machine(place: str, packed: dict) -> dict:
    """What the figures are of.

    Args:
        place: One of places.PLACES.
        packed: What `ci/gpu pack` says of the folder; may be empty.
    """
    row = {"gpu": place, "is_gpu": place == "cuda", "driver": "none"}
    if place == "cuda":
        row |= {"gpu": "unknown GPU", "driver": "?"}
        values = _nvidia_smi()
        row |= dict(zip(FIELDS, values, strict=False)) if values else {}
        row["gpu"] = row.pop("name", row["gpu"])
        row["driver"] = row.pop("driver_version", row["driver"])
    else:
        row["note"] = "no GPU, toy sizes: nothing here is a measurement of one"
    with contextlib.suppress(metadata.PackageNotFoundError):
        row["torch"] = metadata.version("torch")
    return row | {
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "commit": packed.get("commit", "?"),
        "date": today(),
    }


def _nvidia_smi() -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [*query, "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
        if done.returncode == 0 and done.stdout:
            first = done.stdout.splitlines()[0]
            return [value.strip() for value in first.split(",")]
    return []


def name_of(gpu: str) -> str:
    """A file's name for a GPU's."""
    return gpu.lower().replace(" ", "-").replace("/", "-") + ".json"


class Results:
    """Rows of a lease, gathered.

    Args:
        folder: Where the file is, named after the GPU.
        machine: What `machine()` says.
        before: A folder of files of leases before, for a training's peak.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        machine: dict,
        before: pathlib.Path | None = None,
    ) -> None:
        self.file = folder / name_of(machine["gpu"])
        self.failed: dict[str, str] = {}  # steps of this lease: why
        self.left_out: dict[str, str] = {}
        self._budgets: dict[str, int] = {}
        self._begun: set[str] = set()  # sections that this lease began anew
        self.all: dict = {"points": {}, "bits": {}, "operators": {}}
        self.all |= {"probe": [], "steps": {}}
        if self.file.exists():
            self.all |= json.loads(self.file.read_text())
        self.all["machine"] = machine
        self._earlier: dict = {}  # points
        if before is not None and (before / self.file.name).exists():
            earlier = json.loads((before / self.file.name).read_text())
            self._earlier = earlier["points"]

    def peak_bytes(self, training: str) -> int:
        """The training's peak as it is; 0: not known."""
        for points in (self.all["points"], self._earlier):
            roomy, ours = (
                points.get(f"{training} {way} 0", {}) for way in _IN_MEMORY
            )
            peak = roomy.get("peak_bytes") or ours.get("logical_peak_bytes", 0)
            if peak:
                return peak
        return 0

    def why_no_peak(self, training: str) -> str:
        """Why a training's peak is not known."""
        rows = (self.point(f"{training}/{way}/0") for way in _IN_MEMORY)
        errors = (row["error"] for row in rows if "error" in row)
        said = next(errors, "not measured")
        return f"the training's peak is not known: {said}"

    def fits_in_less(self, step: str, budget: int) -> str | None:
        """The smaller budget in which a way of others ran, if there is one."""
        training, way, _ = step.split("/")
        if way in ("chameleon", "micro_batch"):  # they use what they get
            return None
        for key, row in self.all["points"].items():
            is_same = key.startswith(f"{training} {way} ")
            if is_same and "ms" in row and 0 < row["budget_bytes"] < budget:
                return key.split()[2]
        return None

    def point(self, step: str) -> dict:
        """The figures of a training's step; empty: there are none."""
        return self.all["points"].get(_key(step), {})

    def begin_point(self, step: str, budget: int) -> None:
        """A training is about to be run, within that budget."""
        self._budgets[step] = budget

    def add(self, row: dict) -> None:
        """Takes up what a step said, and writes the file where it matters."""
        step = row["step"]
        if "left_out" in row:
            self.left_out[step] = row["left_out"]
            self.all["steps"][step] = {"left_out": row["left_out"]}
        elif "rc" in row:
            self._add_end(step, row)
        elif step.startswith("two/"):
            if "point" in row:
                self._anew("two", {})[step] = row["point"]
        elif "point" in row:
            self._add_point(step, row["point"])
        elif more := _MORE & row.keys():
            point = self.all["points"].setdefault(_key(step), {})
            point |= {key: row[key] for key in more}
        elif "probe" in row:
            self._anew("probe", []).append(_plain(row))
        elif "finding" in row:
            found = self._anew(row["finding"], [])
            found.append(
                {k: v for k, v in _plain(row).items() if k != "finding"}
            )
        elif "script" in row:
            self._add_script(step, row)
        elif "workload" in row:
            self._add_bits(step, row)
        elif "operators" in row:
            counts = self._anew("operators", {})
            for kind, count in row["operators"].items():
                counts[kind] = counts.get(kind, 0) + count
        elif "operator" in row:
            names = self._anew("operators", {}).setdefault("names", [])
            names.append(row["operator"])
            self.failed[step] = f"{row['operator']} differs"
        elif step in ("first", "as_cuda"):
            checks = _plain(row)
            bad = [name for name, became in checks.items() if became != "ok"]
            self.all[step] = {"ok": len(checks) - len(bad), "failed": bad}
            if bad:
                self.failed[step] = f"failed: {' '.join(bad)}"
        else:
            return  # a step's time, say: it is in results.jsonl
        self._write()

    def _anew(self, section: str, empty):
        """What this lease found of it, without what the file had before."""
        if section not in self._begun:
            self._begun.add(section)
            self.all[section] = empty
        return self.all[section]

    def _add_end(self, step: str, row: dict) -> None:
        self.all["steps"][step] = _plain(row)
        if row["rc"] == 0:
            return
        why = f"ended with {row['rc']}"
        if row.get("too_long"):
            why = f"took longer than {row['seconds']:.0f} s"
        if row.get("doing"):
            why += f", doing {row['doing']}"
        self.failed.setdefault(step, why)
        if step in self._budgets:
            # What it said before it ended is kept.
            have = self.point(step)
            self._add_point(step, {"error": why, **have})

    def _add_point(self, step: str, figures: dict) -> None:
        if figures.get("error", "").startswith("not here: "):
            self.left_out[step] = figures["error"]
        date, commit = (self.all["machine"][key] for key in ("date", "commit"))
        self.all["points"][_key(step)] = {
            "budget_bytes": self._budgets.get(step, 0),
            **figures,
            "date": date,
            "commit": commit,
        }

    def _add_bits(self, step: str, row: dict) -> None:
        runs = self.all["bits"].setdefault(row["workload"], {})
        known = runs.get(row["side"], [])
        if len(known) == _RUNS.get(row["side"], 1):
            known = []  # of a lease before
        runs[row["side"]] = [*known, _plain(row)]
        for why in ("error", "different"):
            if row.get(why):
                self.failed[step] = f"{row['workload']}: {why}"

    def _add_script(self, step: str, row: dict) -> None:
        self.all.setdefault("scripts", {})[row["script"]] = _plain(row)
        if not scripts.is_good(row):
            self.failed[step] = f"{row['script']}: error or different"

    def _write(self) -> None:
        part = self.file.with_suffix(".part")
        text = json.dumps(self.all)
        part.write_text(text.replace('}, "', '},\n"') + "\n")
        part.rename(self.file)


_IN_MEMORY = ("in_memory", "chameleon")  # the ways that tell a peak
_MORE = {"link_busy", "profile"}  # what a point is told after its figures
_RUNS = {"here": 4}  # of one workload


def _key(step: str) -> str:
    return step.replace("/", " ")


def _plain(row: dict) -> dict:
    return {key: row[key] for key in row if key not in ("step", "t")}
