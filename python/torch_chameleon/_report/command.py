"""`python -m torch_chameleon report script.py`: a page about a script's run."""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator

from torch_chameleon import _C, _script
from torch_chameleon._as_cuda import as_cuda
from torch_chameleon._report import recording, report
from torch_chameleon._report.figures import was_used


def main(arguments: list[str] | None = None) -> int:
    """Runs a script, records it, writes the page.

    Args:
        arguments: The command line, default the process's.

    Returns:
        The exit status, if the script ends without one.
    """
    parser = _script.CommandParser(
        prog="python -m torch_chameleon report",
        description="Runs a training script and writes one HTML page that "
        "shows where its memory was. Every op is timed meanwhile: let the "
        'script run a few steps only. It may say "chameleon" or "cuda".',
    )
    parser.add_argument(
        "--out", default="report.html", help="the page (%(default)s)"
    )
    parser.add_argument("script", help="a Python script that uses the device")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="what the script is given"
    )
    options = parser.parse_args(arguments)
    if not os.path.isfile(options.script):
        parser.error(f"no file {options.script}")
    parser.check_file("--out", options.out)
    parser.warn_of_ours_behind(options.script, options.arguments)
    as_cuda()
    with page_about(options.out):
        _script.run_script(options.script, options.arguments)
    return 0 if was_used(_C.current_device()) else 1


@contextlib.contextmanager
def page_about(path: str) -> Iterator[None]:
    """Records what is inside and writes the page, however that ends.

    Where nothing used the device it says so, and writes none.

    Args:
        path: The page.

    Raises:
        SystemExit: It cannot be written, and nothing else was wrong.
    """
    where = os.path.abspath(path)  # the program may go to another folder
    try:
        with recording():
            yield
    except BaseException:
        _write(path, where)
        raise
    if not _write(path, where):
        sys.exit(1)


def _write(path: str, where: str) -> bool:
    """Writes the page and says so; False: it cannot be written."""
    if not was_used(_C.current_device()):
        print(
            "torch_chameleon: no page, since no tensor was on the device: "
            'the program trains where .to("cuda") or .to("chameleon") puts '
            "it",
            file=sys.stderr,
        )
        return True
    try:
        report(where)
    except OSError as error:
        reason = error.strerror or error
        print(
            f"torch_chameleon: no page, since {path} cannot be written: "
            f"{reason}",
            file=sys.stderr,
        )
        return False
    print(f"torch_chameleon: wrote {path}", file=sys.stderr)
    return True
