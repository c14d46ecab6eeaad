"""The command line of `python -m torch_chameleon plan`."""

import argparse
import functools
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
  python -m torch_chameleon plan --gpu h100 --gpus 16 --nodes 2 train.py
  python -m torch_chameleon plan --gpu "base=h200, memory=96GiB" train.py

What follows the script is its own command line.
"""
_MOST_TIMES = 1_000_000  # as config.oversubscription


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Reads the command line; exits with one sentence if it is wrong.

    Args:
        arguments: The options, default the process's.

    Returns:
        The options; `budget` and `host` in bytes or None. Where they come from
        is in `budget_source`, `host_source` and `oversubscription_source`.
    """
    reader = _parser()
    options = reader.parse_args(arguments)
    _add_the_environment(options)
    if options.gpu.lower() in _cards():
        options.gpu = options.gpu.lower()
    try:
        card = _C.gpu_profile(options.gpu)
    except ValueError as error:
        reader.error(f"--gpu = {options.gpu!r} {error}")
    if options.budget is not None and options.budget > card["memory_bytes"]:
        reader.error(
            f"{options.budget_source} {_C.format_bytes(options.budget)} is "
            "more than "
            f"{card['name']} has, {_C.format_bytes(card['memory_bytes'])}; say "
            'another card, or --gpu "base=..., memory=..."'
        )
    if options.gpus % options.nodes:
        reader.error(
            f"--gpus {options.gpus} are not equally many on each of --nodes "
            f"{options.nodes}"
        )
    if not os.path.isfile(options.script):
        reader.error(f"no file {options.script}")
    for name in ("plot", "json"):
        path = getattr(options, name)
        if path is not None:
            reader.check_file(f"--{name}", path)
    if options.plot:
        _check_picture(reader, options.plot)
    reader.warn_of_ours_behind(options.script, options.arguments)
    return options


def _cards() -> list[str]:
    return [row["name"] for row in _C.gpu_profiles()]


def _check_picture(reader: CommandParser, path: pathlib.Path) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        reader.error("--plot needs matplotlib: pip install matplotlib")
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.lower().removeprefix(".") not in known:
        reader.error(
            f"--plot = {path}: no picture ends so; matplotlib makes "
            + ", ".join(f".{kind}" for kind in sorted(known))
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
        help=f"{', '.join(_cards())}; or "
        'figures such as "base=h200, memory=96GiB" (default: '
        "CHAMELEON_SIMULATED_GPU, or h200)",
    )
    add(
        "--gpus",
        metavar="N",
        type=functools.partial(_count, least=1),
        default=1,
        help="the script trains on so many, as torchrun starts it: one rank "
        "of it runs, as rank 0, and the others are taken to be like it",
    )
    add(
        "--nodes",
        metavar="M",
        type=functools.partial(_count, least=1),
        default=1,
        help="machines that have these GPUs, equally many each (default: 1)",
    )
    add(
        "--network",
        metavar="RATE",
        type=_rate,
        default=None,
        help="what a GPU has of the network between machines, such as "
        '"400Gbit" or "50GB" a second (default: the card\'s, see '
        "backend/runtime/simulated/README.md)",
    )
    add(
        "--budget",
        metavar="SIZE",
        type=functools.partial(_size, reader),
        help='device memory to live in, such as "16GiB" (default: '
        "CHAMELEON_HBM_BUDGET, or what the device takes by itself, 90 %% of "
        "what is free on the card beside a context)",
    )
    add(
        "--host",
        metavar="SIZE",
        type=functools.partial(_size, reader),
        help='host memory to move tensors to, such as "64GiB" (default: '
        "CHAMELEON_HOST_BUDGET, or 80 %% of this machine's)",
    )
    add(
        "--oversubscription",
        metavar="TIMES",
        type=_times,
        help="tensor memory that may be live, as a multiple of the budget "
        "(default: what the script sets, CHAMELEON_OVERSUBSCRIPTION, or 4)",
    )
    add(
        "--share",
        metavar="FRACTION",
        type=_share,
        default=_share(_C.get_option("simulated_share") or "1"),
        help="of the largest size, to take where a size depends on values "
        "(masks, nonzero, unique; default: CHAMELEON_SIMULATED_SHARE, or 1)",
    )
    add(
        "--steps",
        metavar="N",
        type=functools.partial(_count, least=2),
        default=8,
        help="steps of the training to look at, and up to four times as many "
        "while they bring new sizes; within a budget fewer where they take "
        "the same time (default: %(default)s)",
    )
    add(
        "--table",
        action="store_true",
        help="other budgets too, behind the answer; takes some runs more",
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
        help="the same as a picture, such as plan.png",
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


def _add_the_environment(options: argparse.Namespace) -> None:
    """What is set for every program; a number without a unit is bytes there."""
    for name, key in (("budget", "HBM_BUDGET"), ("host", "HOST_BUDGET")):
        variable = f"CHAMELEON_{key}"
        source, text = f"--{name}", os.environ.get(variable)
        if getattr(options, name) is None and text:
            setattr(options, name, _C.parse_bytes(text))
            source = variable
        setattr(options, f"{name}_source", source)
    options.oversubscription_source = (
        "CHAMELEON_OVERSUBSCRIPTION"
        if os.environ.get("CHAMELEON_OVERSUBSCRIPTION")
        else "the default of config.oversubscription"
    )


def _times(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= _MOST_TIMES:
        raise argparse.ArgumentTypeError(
            f'"{text}" must be a number from 1 to {_MOST_TIMES:,}'
        )
    return value


def _size(reader: CommandParser, text: str) -> int:
    wrong = lacks_unit(text)
    if wrong is not None:
        raise argparse.ArgumentTypeError(wrong)
    try:
        size = _C.parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size < 1 << 20:
        raise argparse.ArgumentTypeError(f'"{text}" is less than 1 MiB')
    reader.say_unit(text)
    return size


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(
            f'"{text}" must be a fraction, more than 0 and at most 1, such as '
            "0.25"
        )
    return value


def _count(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < least:
        raise argparse.ArgumentTypeError(
            f'"{text}" must be a number, {least} or more'
        )
    return value


def _rate(text: str) -> float:
    """Bytes a second; there is no unit that both fields take for granted."""
    found = re.fullmatch(
        r"\s*([0-9]*\.?[0-9]+)\s*([KMGT])(bit|b|B|iB)(?:/s|ps)?\s*", text
    )
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(
            f'"{text}" must be a rate with its unit, such as "400Gbit" or '
            '"50GB" a second'
        )
    bits = found[3] in ("bit", "b")
    step = 1024 if found[3] == "iB" else 1000
    scale: float = step ** ("KMGT".index(found[2]) + 1)
    return float(found[1]) * scale / (8 if bits else 1)
