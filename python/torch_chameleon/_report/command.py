"""`python -m torch_chameleon report script.py`: a page about a script's run."""

import argparse
import runpy
import sys

from torch_chameleon._report import recording, report


def main(arguments: list[str] | None = None) -> int:
    """Runs a script, records it, writes the page.

    Args:
        arguments: The command line, default the process's.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(
        prog="python -m torch_chameleon report",
        description="Runs a training script and writes one HTML page that "
        "shows where its memory was. Every op is timed meanwhile: let the "
        "script run a few steps only.",
    )
    parser.add_argument(
        "--out", default="report.html", help="the page (%(default)s)"
    )
    parser.add_argument("script", help="a Python script that uses the device")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="what the script is given"
    )
    options = parser.parse_args(arguments)
    before = sys.argv
    sys.argv = [options.script, *options.arguments]
    try:
        with recording():
            runpy.run_path(options.script, run_name="__main__")
    finally:
        sys.argv = before
    report(options.out)
    print(f"wrote {options.out}")
    return 0
