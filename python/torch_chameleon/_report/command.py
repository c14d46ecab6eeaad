"""`python -m torch_chameleon report script.py`: a page about a script's run.

`report run.json run.rank1.json` compares ranks that have run already.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator

from torch.types import Device

from torch_chameleon import _ranks, _script
from torch_chameleon._as_cuda import as_cuda
from torch_chameleon._report import recording, report, summary
from torch_chameleon._report.figures import was_used
from torch_chameleon.chameleon._utils import _get_device_index


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
        'script run a few steps only. It may say "chameleon" or "cuda". Under '
        "torchrun each rank writes a file of its own; of those that end in "
        '".json" one table comes from `report run.json run.rank1.json`.',
    )
    parser.add_argument(
        "--out", default="report.html", help="the page (%(default)s)"
    )
    parser.add_argument(
        "script",
        help="a Python script that uses the device, or files of ranks",
    )
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="what the script is given"
    )
    options = parser.parse_args(arguments)
    if not os.path.isfile(options.script):
        parser.error(f"no file {options.script}")
    if options.script.endswith(".json"):
        return _compare(parser, [options.script, *options.arguments])
    parser.check_file("--out", options.out)
    parser.warn_of_ours_behind(options.script, options.arguments)
    as_cuda()
    with page_about(options.out):
        _script.run_script(options.script, options.arguments)
    return 0 if was_used(_index()) else 1


def _compare(parser: _script.CommandParser, paths: list[str]) -> int:
    try:
        print(summary.text_of(summary.read(paths)))
    except OSError as error:
        parser.error(f"{error.filename}: {error.strerror}")
    except summary.SummaryError as error:
        parser.error(str(error))
    return 0


def _device() -> Device:
    """That of the rank, which need not be the current one; None: the current.

    A program may say to each call which device it means.
    """
    return _ranks.device_of_rank() if _ranks.is_launched() else None


def _index() -> int:
    return _get_device_index(_device(), optional=True)


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
        with recording(_device()):
            yield
    except BaseException:
        _write(path, where)
        raise
    if not _write(path, where):
        sys.exit(1)


def _write(path: str, where: str) -> bool:
    """Writes the page and says so; False: it cannot be written."""
    if not was_used(_index()):
        print(
            "torch_chameleon: no page, since no tensor was on the device: "
            'the program trains where .to("cuda") or .to("chameleon") puts '
            "it",
            file=sys.stderr,
        )
        return True
    written = _ranks.path_of_rank(path)
    try:
        report(where, _device())
    except OSError as error:
        print(
            f"torch_chameleon: no page, since {written} cannot be written: "
            f"{error.strerror or error}",
            file=sys.stderr,
        )
        return False
    print(f"torch_chameleon: wrote {written}", file=sys.stderr)
    return True
