"""`python -m torch_chameleon <command>`."""

import argparse
import importlib
import sys

# Each is a module of the package, with a `main` that takes the command line.
_COMMANDS = {
    "run": "run a program that was written for CUDA, as it is",
    "demo": "train a GPT in a quarter of the memory it needs",
    "elastic": "launch a training that survives failures of its workers",
    "plan": "will a training script fit on a GPU, and how slow",
    "doctor": "say what a bug report needs, and test that the device works",
    "report": "run a script and write a page that shows where its memory was",
}
# Elsewhere than under their name.
_MODULES = {"elastic": "elastic.command", "report": "_report.command"}


def main() -> int:
    """Runs the command that is named."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_chameleon",
        description="Tools of torch_chameleon. "
        "`python -m torch_chameleon <command> --help` explains each.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in _COMMANDS.items():
        commands.add_parser(name, add_help=False, help=text)
    if len(sys.argv) == 1:
        parser.print_help(sys.stderr)
        return 2
    options, rest = parser.parse_known_args()
    name = _MODULES.get(options.command, options.command)
    module = importlib.import_module(f"torch_chameleon.{name}")
    return int(module.main(rest))


if __name__ == "__main__":
    sys.exit(main())
