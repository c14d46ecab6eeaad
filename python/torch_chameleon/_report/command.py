"""`python -m torch_chameleon report script.py`: a page about a script's run."""

import argparse
import contextlib
from collections.abc import Iterator

from torch_chameleon import _script
from torch_chameleon._as_cuda import as_cuda
from torch_chameleon._report import recording, report


def main(arguments: list[str] | None = None) -> int:
    """Runs a script, records it, writes the page.

    Args:
        arguments: The command line, default the process's.

    Returns:
        The exit status, if the script ends without one.
    """
    parser = argparse.ArgumentParser(
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
    as_cuda()
    with page_about(options.out):
        _script.run_script(options.script, options.arguments)
    return 0


@contextlib.contextmanager
def page_about(path: str) -> Iterator[None]:
    """Records what is inside and writes the page, however that ends.

    Args:
        path: The page.
    """
    try:
        with recording():
            yield
    finally:
        report(path)
        print(f"wrote {path}")
