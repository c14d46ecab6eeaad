"""`python -m torch_chameleon plan train.py`: will it fit, and how slow.

Runs the first steps of a training script, unmodified, on a simulated GPU:
first with room for everything, which gives its peak and the time of a step in
memory; then within the budget, with the code that would swap and run ops again
on the real card. Where that is asked for, other budgets and other cards follow
behind the answer. All times are modelled.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator

from torch_chameleon.plan import cards, curve, fewer
from torch_chameleon.plan.arguments import parse
from torch_chameleon.plan.folder import working_folder
from torch_chameleon.plan.planner import Planner, told
from torch_chameleon.plan.process import ScriptError
from torch_chameleon.plan.report import kept_away, tables_of, text_of
from torch_chameleon.plan.runs import Figures, Runs

_BY_SIGNAL = 128  # and its number: the exit status


class _SignalError(BaseException):
    """Ends the command; no `except Exception` keeps it."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: The command line, default the process's.

    Returns:
        The exit status: 0 if the script fits, swapped or not, else 1.
    """
    options = parse(arguments)
    try:
        with _signals_as_errors():
            return _main(options)
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BY_SIGNAL + signal.SIGPIPE
    except _SignalError as received:
        print("torch_chameleon plan: interrupted", file=sys.stderr)
        raise SystemExit(_BY_SIGNAL + received.args[0]) from None


@contextlib.contextmanager
def _signals_as_errors() -> Iterator[None]:
    """So that no temporary folder and no process is left behind.

    Only the first signal counts: another one would end the tidying-up.
    """

    def received(number: int, frame: object) -> None:
        for each in changed:
            signal.signal(each, signal.SIG_IGN)
        raise _SignalError(number)

    usual = (signal.SIG_DFL, signal.default_int_handler)
    changed = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) in usual
    }
    for number in changed:
        signal.signal(number, received)
    try:
        yield
    finally:
        for number, handler in changed.items():
            signal.signal(number, handler)


def _main(options: argparse.Namespace) -> int:
    begin = time.monotonic()
    columns = None
    if sys.stdout.isatty():
        columns = shutil.get_terminal_size().columns
    try:
        with working_folder() as folder:
            runs = Runs(options, folder)
            planner = Planner(options, runs)
            figures = planner.figures()
            figures["reads"] = list(runs.reads)
            figures["sizes"] = runs.sizes
            figures["share"] = options.share
            _tell("answered", begin)
            print(text_of(figures, columns), flush=True)
            if figures["fits"] != "not known" and _add_tables(planner, figures):
                _tell("tables", begin)
                print(tables_of(figures), flush=True)
            figures["kept_away"] = runs.kept_away
            print(kept_away(figures, columns))
    except (ScriptError, ValueError) as error:
        raise SystemExit(f"torch_chameleon plan: {error}") from None
    figures.pop("trace", None)  # the file is gone
    _write(options, figures)
    return 0 if figures["fits"] in ("in memory", "swapped") else 1


def _tell(what: str, begin: float) -> None:
    seconds = time.monotonic() - begin
    print(f"plan: {what} after {seconds:.0f} s", file=sys.stderr, flush=True)


def _add_tables(planner: Planner, figures: Figures) -> bool:
    """Adds what was asked for; returns whether that was anything."""
    options = planner.options
    if options.table or options.plot is not None:
        figures["curve"] = told(
            "steps within other budgets",
            lambda: curve.rows_of(planner, figures),
        )
    if options.table and options.gpus > 1:
        figures["fewer"] = told(
            "steps on fewer GPUs", lambda: fewer.rows_of(planner, figures)
        )
    if options.cards:
        figures["cards"] = told(
            "steps on other cards", lambda: cards.rows_of(planner, figures)
        )
    return bool(options.table or options.plot is not None or options.cards)


def _write(options: argparse.Namespace, figures: Figures) -> None:
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    if options.plot is not None:
        from torch_chameleon.plan.plot import write_plot

        write_plot(options.plot, figures)
