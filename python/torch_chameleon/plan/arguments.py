"""The command line of `python -m torch_chameleon plan`."""

import argparse
import pathlib

GPUS = (
    *("h200", "h100", "a100-80gb", "a100-40gb", "l40s"),
    *("rtx5090", "rtx4090", "rtx3090"),
)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Reads the command line; exits with its error if it is wrong.

    Args:
        arguments: The options, default the process's.
    """
    reader = argparse.ArgumentParser(
        prog="python -m torch_chameleon plan",
        description="Runs the first steps of a training script, as it is, on a "
        "simulated GPU, and says what it needs, whether it fits, and how slow "
        "it is with less memory. All times are modelled. The script may say "
        '"cuda", "chameleon" or nothing; values do not exist, and what is read '
        "is 0.",
        epilog="What follows the script is its own command line.",
    )
    add = reader.add_argument
    add(
        "--gpu",
        choices=GPUS,
        default="h200",
        help="the card (default: %(default)s)",
    )
    add(
        "--budget",
        help='HBM to live in, such as "16GiB" (default: the card\'s memory)',
    )
    add(
        "--steps",
        type=_at_least_two,
        default=8,
        help="optimizer steps to run; the last one is reported (default: "
        "%(default)s)",
    )
    add(
        "--cards",
        action="store_true",
        help="compare all known cards; takes a run of three steps for each",
    )
    add(
        "--plot", type=pathlib.Path, help="file for the curve, such as plan.png"
    )
    add("--json", type=pathlib.Path, help="file for all figures")
    add("script", help="a Python file that trains")
    add("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return reader.parse_args(arguments)


def _at_least_two(text: str) -> int:
    value = int(text)
    if value < 2:
        raise argparse.ArgumentTypeError(f"{value} is less than 2")
    return value
