"""`python -m torch_chameleon run train.py`: a program for CUDA, as it is."""

import argparse
import contextlib
import importlib.util
import os

from torch_chameleon import _script
from torch_chameleon._as_cuda import as_cuda
from torch_chameleon._config import config
from torch_chameleon._report.command import page_about

_SURELY_BYTES = 1024  # smaller numbers are GiB whose unit was forgotten


def main(arguments: list[str] | None = None) -> int:
    """Runs a program in this process, which becomes the program's.

    Args:
        arguments: The command line, default the process's.

    Returns:
        The exit status, if the program ends without one.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.is_module:
        if not _is_there(options.program):
            parser.error(f"no module named {options.program}")
    elif not os.path.isfile(options.program):
        parser.error(f"no file {options.program}")
    wrong = options.hbm_budget and _script.lacks_unit(
        options.hbm_budget, _SURELY_BYTES
    )
    if wrong:
        parser.error(f"--budget: {wrong}")
    if options.report:
        parser.check_file("--report", options.report)
    if not options.is_module:
        parser.warn_of_ours_behind(options.program, options.arguments)
    try:
        for key in ("hbm_budget", "oversubscription"):
            text = getattr(options, key)
            if text is not None:
                setattr(config, key, text)
                # For the processes that the program starts.
                os.environ[f"CHAMELEON_{key.upper()}"] = text
    except ValueError as error:
        parser.error(str(error))
    if options.hbm_budget:
        parser.say_unit(options.hbm_budget)
    as_cuda()
    run = _script.run_module if options.is_module else _script.run_script
    page = options.report
    with page_about(page) if page else contextlib.nullcontext():
        run(options.program, options.arguments)
    return 0


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # nor is its parent
        return False


def _parser() -> _script.CommandParser:
    parser = _script.CommandParser(
        prog="python -m torch_chameleon run",
        description="Runs a program that was written for CUDA, as it is: in "
        'it and in the processes that it starts "cuda" means chameleon. '
        "CHAMELEON_AS_CUDA=1 in the environment does the same under any other "
        "launcher.",
        epilog="What follows the program is its own command line.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--budget",
        dest="hbm_budget",
        metavar="SIZE",
        help='device memory to live in, such as "20GiB" (default: 90 %% of '
        "what is free)",
    )
    add(
        "--oversubscription",
        metavar="TIMES",
        help="tensor memory that may be live, as a multiple of it (default: 4)",
    )
    add(
        "--report",
        metavar="FILE",
        help="write a page that shows where memory was; every op is timed "
        "meanwhile, so let the program run a few steps only",
    )
    add(
        "-m",
        dest="is_module",
        action="store_true",
        help="the program is the name of a module",
    )
    add("program", help="a Python script")
    # There may be none, which argparse does not know of a remainder.
    add(
        "arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS
    ).required = False
    return parser
