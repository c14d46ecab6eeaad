"""Runs steps within a time that is lent, and keeps all that they say.

A step is a process. What it prints goes to files line by line, as it comes: a
line that is a JSON object to results.jsonl, every other one to log.txt. A step
that hangs or dies costs its own limit and nothing else, and one that has no
time left is left out; both are written too. Only the standard library is used.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence

RESERVE_S = 3.0  # of all the time, to end what runs and to write it down
GRACE_S = 2.0  # from being asked to end, which names the stack, to being killed
KILL_S = 10.0  # to be gone then: much pinned memory is given back slowly
LEAST_S = 4.0  # a step is not begun with less
ENDED = "native.ended"  # who waits for the native side waits no longer then
TAIL = 8  # log lines that the end of a failed step repeats
CRASH = "Fatal Python error"  # faulthandler's; the stacks follow
CRASH_LINES = 40


@dataclasses.dataclass(frozen=True)
class Step:
    """A process to run.

    Attributes:
        name: What its lines are marked with.
        command: The program and its arguments.
        limit_s: It is ended after so many seconds.
        environment: Variables beside those of this process.
        journal: A file in which it names what it is about to do, a line each.
            The last one is part of what is written if it dies.
        tries: How often it is begun, within the same limit, where it died by
            a signal: a step with a journal goes on behind what killed it.
        ended: A file that is made once it is over, whatever became of it, for
            a step at its side that waits for its results.
    """

    name: str
    command: Sequence[str]
    limit_s: float
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    journal: pathlib.Path | None = None
    tries: int = 1
    ended: pathlib.Path | None = None


class Deadline:
    """Runs steps until the time is up. Thread safe.

    Args:
        folder: Where results.jsonl and log.txt grow.
        seconds: How long all steps together may take from now on.
        hear: Called with each row as it is kept, one at a time.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        seconds: float,
        hear: Callable[[dict], None] = lambda row: None,
    ) -> None:
        self._begin = time.monotonic()
        self._seconds = seconds
        self._hear = hear
        self._lock = threading.Lock()
        self._results = (folder / "results.jsonl").open("a")
        self._log = (folder / "log.txt").open("a")

    def left_s(self) -> float:
        """Seconds until the last step has to be over."""
        gone = time.monotonic() - self._begin
        return self._seconds - RESERVE_S - gone

    def keep(self, step: str, row: Mapping[str, object]) -> None:
        """Writes a row of a step, with its name and time, and hands it on."""
        at = round(time.monotonic() - self._begin, 2)
        kept = {**row, "step": step, "t": at}
        with self._lock:
            self._results.write(json.dumps(kept) + "\n")
            self._results.flush()
            try:
                self._hear(kept)
            except Exception:  # of a row that is not what it looks like
                self._log.write(traceback.format_exc())
                self._log.flush()

    def leave_out(self, step: str, why: str) -> None:
        """Writes that a step was not run."""
        self.keep(step, {"left_out": why})

    def run(self, *steps: Step) -> None:
        """Runs steps at a time, and returns when all are over."""
        threads = [
            threading.Thread(target=self._run, args=(step,)) for step in steps
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _run(self, step: Step) -> None:
        end = time.monotonic() + min(step.limit_s, self.left_s())
        if end - time.monotonic() < LEAST_S:
            self.leave_out(step.name, "no time was left")
        else:
            for _ in range(step.tries):
                status = self._try(step, end - time.monotonic())
                died = status is not None and status < 0
                if not died or end - time.monotonic() < LEAST_S:
                    break
        if step.ended is not None:
            step.ended.touch()

    def _try(self, step: Step, limit_s: float) -> int | None:
        """Runs a step once; its exit status, None if it took too long."""
        start = time.monotonic()
        tail: list[str] = []
        crash: list[str] = []
        try:
            process = subprocess.Popen(
                list(step.command),
                env={**os.environ, **step.environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # what it starts ends with it
            )
        except OSError as error:
            self.keep(step.name, {"rc": 127, "tail": [str(error)]})
            return 127
        # Whoever cannot be killed must not be waited for either.
        reader = threading.Thread(
            target=self._read,
            args=(step.name, process, tail, crash),
            daemon=True,
        )
        reader.start()
        is_late = False
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            is_late = True
            _signal(process, signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
        _signal(process, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILL_S)
        reader.join(GRACE_S)
        status = None if is_late else process.returncode
        row: dict = {"rc": status}
        if is_late:
            row["too_long"] = True
        if status != 0:
            row["doing"] = _last_line(step.journal)
            row["crash" if crash else "tail"] = crash or tail[-TAIL:]
        row["seconds"] = round(time.monotonic() - start, 1)
        self.keep(step.name, row)
        return status

    def _read(
        self,
        name: str,
        process: subprocess.Popen,
        tail: list[str],
        crash: list[str],
    ) -> None:
        assert process.stdout is not None
        for raw in process.stdout:
            line = raw.decode(errors="replace").rstrip("\n")
            row = None
            if line.startswith("{"):
                with contextlib.suppress(ValueError, RecursionError):
                    row = json.loads(line)
            if isinstance(row, dict):
                self.keep(name, row)
                continue
            tail.append(line)
            del tail[:-TAIL]
            is_crash = crash or line.startswith(CRASH)
            if is_crash and len(crash) < CRASH_LINES:
                crash.append(line)
            with self._lock:
                self._log.write(f"{name}: {line}\n")
                self._log.flush()


def _signal(process: subprocess.Popen, number: int) -> None:
    """To the process and all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _last_line(journal: pathlib.Path | None) -> str | None:
    if journal is None or not journal.exists():
        return None
    lines = journal.read_text(errors="replace").splitlines()
    return lines[-1] if lines else None


class Journal:
    """What a process does, thing by thing, for who comes after it.

    Attributes:
        known: What earlier processes began. They ended it or died of it.
    """

    def __init__(self, path: pathlib.Path) -> None:
        before = path.read_text().splitlines() if path.exists() else []
        self.known = frozenset(before)
        self._file = path.open("a")

    def begin(self, name: str) -> None:
        """The process is about to do that."""
        self._file.write(name + "\n")
        self._file.flush()
