"""The demo's command line. Runs on its own, before anything is built."""

import argparse
from pathlib import Path

_SIZES = ("layers", "width", "heads", "context", "batch")
_PRESETS = {
    "tiny": (2, 64, 2, 64, 8),
    "base": (6, 384, 6, 128, 8),
    "large": (12, 512, 8, 256, 8),
}


def parser(prog: str) -> argparse.ArgumentParser:
    """The command line.

    Args:
        prog: What the user typed before the options.
    """
    result = argparse.ArgumentParser(
        prog=prog,
        description="Trains a GPT on real text three times: natively, on "
        "chameleon without a limit (which gives the peak), and on chameleon "
        "within a fraction of that peak. Then says whether every bit is the "
        "same, and what it cost.",
    )
    add = result.add_argument
    add(
        "--preset",
        choices=_PRESETS,
        default="base",
        help="the model's sizes: tiny (0.1 M parameters, for a quick look), "
        "base (10.8 M, the default) or large (38 M); the next five options "
        "change one of them",
    )
    add("--layers", type=_positive, help="transformer blocks")
    add("--width", type=_positive, help="features of a token")
    add("--heads", type=_positive, help="attention heads; divides --width")
    add("--context", type=_positive, help="tokens (bytes) of one sequence")
    add("--batch", type=_positive, help="sequences of one step")
    add(
        "--steps",
        type=_positive,
        default=50,
        help="training steps of each run (default: %(default)s)",
    )
    add(
        "--k",
        type=_at_least_one,
        default=4.0,
        help="the budget is the peak without a limit, divided by this "
        "(default: %(default)g)",
    )
    add(
        "--device",
        default="auto",
        help="what computes: torch_chameleon.config.physical_device, such as "
        "cpu (default: %(default)s)",
    )
    add(
        "--policy",
        help="what decides on swapping: torch_chameleon.config.policy, such "
        "as lru (default: what it is there)",
    )
    add(
        "--out",
        type=Path,
        default=Path("chameleon_demo"),
        help="folder for demo.png and demo.json (default: %(default)s)",
    )
    add(
        "--seed",
        type=int,
        default=0,
        help="of weights, batches and generated text (default: %(default)s)",
    )
    return result


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def _at_least_one(text: str) -> float:
    value = float(text)
    if not value >= 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def parse(arguments: list[str] | None, prog: str) -> argparse.Namespace:
    """Reads the command line; exits with its error if it is wrong.

    Args:
        arguments: The options, default the process's.
        prog: What the user typed before them.
    """
    reader = parser(prog)
    options = reader.parse_args(arguments)
    for name, size in zip(_SIZES, _PRESETS[options.preset], strict=True):
        if getattr(options, name) is None:
            setattr(options, name, size)
    if options.width % options.heads:
        reader.error(
            f"--width {options.width} is not a multiple of "
            f"--heads {options.heads}"
        )
    return options


if __name__ == "__main__":
    parse(None, "ci/demo")
