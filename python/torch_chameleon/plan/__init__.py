"""`python -m torch_chameleon plan train.py`: will it fit, and how slow.

Runs the first steps of a training script, unmodified, on a simulated GPU:
first with room for everything, which gives its peak and the time of a step in
memory; then within the budget, and within others for a curve, with the code
that would swap and run ops again on the real card. All times are modelled.
"""

import argparse
import contextlib
import json
import pathlib
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator

from torch_chameleon.plan.arguments import parse
from torch_chameleon.plan.planner import Planner
from torch_chameleon.plan.process import ScriptError
from torch_chameleon.plan.report import text_of


def main(arguments: list[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: The command line, default the process's.

    Returns:
        The exit status: 0 if the script fits, swapped or not, else 1.
    """
    options = parse(arguments)
    try:
        with _signals_as_interrupt():
            return _main(options)
    except KeyboardInterrupt:
        raise SystemExit("torch_chameleon plan: interrupted") from None


@contextlib.contextmanager
def _signals_as_interrupt() -> Iterator[None]:
    """So that no temporary folder and no process is left behind."""
    changed = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) == signal.SIG_DFL
    ]
    for number in changed:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


def _main(options: argparse.Namespace) -> int:
    begin = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(
            prefix="chameleon-plan-", ignore_cleanup_errors=True
        ) as folder:
            planner = Planner(options, pathlib.Path(folder))
            figures = planner.figures()
            if options.cards:
                figures["cards"] = planner.cards(figures)
            figures["kept_away"] = planner.kept_away
            figures["reads"] = list(planner.reads)
    except (ScriptError, ValueError) as error:
        raise SystemExit(f"torch_chameleon plan: {error}") from None
    seconds = time.monotonic() - begin
    print(f"plan: answered in {seconds:.0f} s", file=sys.stderr, flush=True)
    columns = None
    if sys.stdout.isatty():
        columns = shutil.get_terminal_size().columns
    print(text_of(figures, columns))
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    if options.plot is not None:
        from torch_chameleon.plan.plot import write_plot

        write_plot(options.plot, figures)
    return 0 if figures["fits"] != "no" else 1
