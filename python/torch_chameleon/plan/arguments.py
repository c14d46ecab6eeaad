"""The command line of `python -m torch_chameleon plan`."""

import argparse
import importlib.util
import os
import pathlib
import re

from torch_chameleon import _C
from torch_chameleon._script import CommandParser, lacks_unit

_DESCRIPTION = """\
Runs the first steps of a training script, as it is, on a simulated GPU, and
says what it needs, whether it fits, and how slow it is with less memory. All
times are modelled. The script may say "cuda" or "chameleon"; values do not
exist, and what it reads is 1, or False. What it writes is kept away from your
files.
"""
_EXAMPLES = """\
examples:
  python -m torch_chameleon plan --gpu rtx4090 train.py --batch 64
  python -m torch_chameleon plan --gpu t4 --host 32GiB --cards train.py
  python -m torch_chameleon plan --budget 16GiB --plot plan.png train.py
  python -m torch_chameleon plan --gpu "base=h200, memory=96GiB" train.py

What follows the script is its own command line.
"""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Reads the command line; exits with one sentence if it is wrong.

    Args:
        arguments: The options, default the process's.

    Returns:
        The options; `budget` and `host` in bytes or None.
    """
    reader = _parser()
    options = reader.parse_args(arguments)
    try:
        _C.gpu_profile(options.gpu)
    except ValueError as error:
        reader.error(f"--gpu = {options.gpu!r} {error}")
    if not os.path.isfile(options.script):
        reader.error(f"no file {options.script}")
    for name in ("plot", "json"):
        path = getattr(options, name)
        if path is not None:
            reader.check_file(f"--{name}", path)
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        reader.error("--plot needs matplotlib: pip install matplotlib")
    return options


def ours_among(options: argparse.Namespace) -> list[str]:
    """Options of `plan` behind the script's name, which the script gets.

    What the script's text names is its own.

    Args:
        options: As `parse` gave them.
    """
    known = _parser()._option_string_actions
    given = {text.partition("=")[0] for text in options.arguments}
    text = pathlib.Path(options.script).read_text(errors="replace")
    return sorted(
        name
        for name in given & set(known)
        if name.startswith("--")
        and name != "--help"
        and not re.search(rf"{name}\b", text)
    )


def _parser() -> CommandParser:
    reader = CommandParser(
        prog="python -m torch_chameleon plan",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = reader.add_argument
    add(
        "--gpu",
        metavar="CARD",
        default=os.environ.get("CHAMELEON_SIMULATED_GPU") or "h200",
        help=f"{', '.join(row['name'] for row in _C.gpu_profiles())}; or "
        'figures such as "base=h200, memory=96GiB" (default: '
        "CHAMELEON_SIMULATED_GPU, or h200)",
    )
    add(
        "--budget",
        metavar="SIZE",
        type=_size,
        help='device memory to live in, such as "16GiB" (default: what the '
        "device takes by itself, 90 %% of what is free on the card beside a "
        "context)",
    )
    add(
        "--host",
        metavar="SIZE",
        type=_size,
        help='host memory to move tensors to, such as "64GiB" (default: 80 %% '
        "of this machine's)",
    )
    add(
        "--steps",
        metavar="N",
        type=_at_least_two,
        default=8,
        help="steps of the training to run at most within a budget; fewer "
        "where they take the same time (default: %(default)s)",
    )
    add(
        "--cards",
        action="store_true",
        help="compare all known cards; takes a run for each",
    )
    add(
        "--plot",
        metavar="FILE",
        type=pathlib.Path,
        help="picture of the curve, such as plan.png",
    )
    add(
        "--json",
        metavar="FILE",
        type=pathlib.Path,
        help="all figures, bytes and ns",
    )
    add("script", help="a Python file that trains")
    # There may be none, which argparse does not know of a remainder.
    add(
        "arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS
    ).required = False
    return reader


def _size(text: str) -> int:
    wrong = lacks_unit(text)
    if wrong is not None:
        raise argparse.ArgumentTypeError(wrong)
    try:
        size = _C.parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size < 1 << 20:
        raise argparse.ArgumentTypeError(f'"{text}" is less than 1 MiB')
    return size


def _at_least_two(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 2:
        raise argparse.ArgumentTypeError(
            f'"{text}" must be a number, 2 or more'
        )
    return value
