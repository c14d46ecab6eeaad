"""Runs programs, each in a forked process of its own.

The parent never uses the device. A child that crashes or hangs is a result
like any other.
"""

import dataclasses
import faulthandler
import gc
import json
import os
import re
import select
import signal
import tempfile
import time
import traceback

from random_programs.comparison import Difference, difference
from random_programs.generator import Generator
from random_programs.interpreter import Interpreter, configure, finish
from random_programs.program import Program

LIMIT_S = 240
_LARGEST_FACTOR = 16
_RETRY_BYTES = 256 << 20


@dataclasses.dataclass
class Result:
    """What came of a program.

    Args:
        difference: None where all was the same.
        program: What ran; None where making it ended the process.
        counts: What the run added up: lines, ops, evictions ...
    """

    difference: Difference | None
    program: Program | None
    counts: dict[str, int]

    def to_dict(self):
        return {
            "difference": self.difference
            and [self.difference.kind, self.difference.text],
            "program": self.program and self.program.to_dict(),
            "counts": self.counts,
        }

    @classmethod
    def of_dict(cls, fields):
        found, program = fields["difference"], fields["program"]
        return cls(
            Difference(*found) if found else None,
            Program.of_dict(program) if program else None,
            fields["counts"],
        )


def run(program):
    """Runs a program, with twice the budget where it does not fit."""
    return _run(lambda: program)


def run_seed(seed, mode, size):
    """Makes and runs a program."""
    return _run(lambda: Generator(seed, mode, size).program())


def _run(make):
    factor, result = 1, None
    while result is None or (
        result.difference is not None
        and result.difference.kind == "memory"
        and factor <= _LARGEST_FACTOR
    ):
        result = _forked(make, factor)
        if result.program is not None:
            program = result.program
            make = lambda program=program: program  # noqa: E731
        factor *= 2
    return result


def _budgets(program, factor):
    """The largest budget that a program ever sets."""
    found = re.findall(r"box\.budget\((\d+)\)", program.text())
    return factor * max(program.settings["hbm_budget"], *map(int, found), 0)


def _compared(make, factor):
    """In the child: runs natively and on chameleon."""
    program = make()
    os.write(2, b"native\n")
    native = Interpreter(program, "cpu").run()
    gc.collect()
    os.write(2, b"chameleon\n")
    configure(program.settings, factor)
    interpreter = Interpreter(program, "chameleon", factor)
    ours = interpreter.run()
    largest = _budgets(program, factor)
    if interpreter.retries:
        largest = max(largest, _RETRY_BYTES)
    wrong, stats = finish(largest)
    found = difference(native, ours)
    if wrong and found is None:
        found = Difference("device", "; ".join(wrong))
    counts = {
        "lines": program.line_count(),
        "errors": sum(row[0] == "error" for row in native),
        "retries": interpreter.retries,
        **{key: stats[key] for key in ("ops", "evictions", "rerun_ops")},
    }
    return Result(found, program, counts)


def _child(make, factor, answer, log):
    os.dup2(log, 2)
    faulthandler.enable()
    try:
        result = _compared(make, factor)
    except BaseException as error:
        text = "".join(traceback.format_exception(error))[-4000:]
        result = Result(Difference("crash", text), None, {})
    with open(answer, "wb") as file:
        file.write(json.dumps(result.to_dict()).encode())


def _forked(make, factor):
    """Runs in a child; its result, or what its end says."""
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as log:
        child = os.fork()
        if child == 0:
            os.close(reading)
            try:
                _child(make, factor, writing, log.fileno())
            finally:
                os._exit(0)
        os.close(writing)
        with open(reading, "rb") as answer:
            data, ended = _read(answer, time.monotonic() + LIMIT_S)
        if not ended:
            os.kill(child, signal.SIGABRT)
        status = os.waitpid(child, 0)[1]
        log.seek(0)
        text = log.read().decode(errors="replace")
    if ended and data:
        return Result.of_dict(json.loads(data))
    text = re.sub(r"Extension modules:.*", "", text)[-4000:]
    kind = "crash" if ended else "hang"
    if "chameleon\n" not in text:
        kind = "native"
    return Result(Difference(kind, f"status {status}: {text}"), None, {})


def _read(file, deadline):
    """(what a child wrote, whether it ended in time)."""
    pieces = []
    while True:
        left = deadline - time.monotonic()
        ready, _, _ = select.select([file], [], [], max(0, left))
        if not ready:
            return b"", False
        piece = os.read(file.fileno(), 1 << 20)
        if not piece:
            return b"".join(pieces), True
        pieces.append(piece)
