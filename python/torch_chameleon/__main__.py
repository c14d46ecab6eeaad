"""`python -m torch_chameleon <command>`."""

import argparse
import sys


def main() -> int:
    """Runs the command that is named."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_chameleon",
        description="Tools of torch_chameleon. "
        "`python -m torch_chameleon <command> --help` explains each.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "demo",
        add_help=False,
        help="train a GPT in a quarter of the memory it needs",
    )
    commands.add_parser(
        "plan",
        add_help=False,
        help="will a training script fit on a GPU, and how slow",
    )
    options, rest = parser.parse_known_args()
    if options.command == "demo":
        from torch_chameleon import demo

        return demo.main(rest)
    if options.command == "plan":
        from torch_chameleon import plan

        return plan.main(rest)
    raise AssertionError(options.command)


if __name__ == "__main__":
    sys.exit(main())
