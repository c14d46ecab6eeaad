"""Random programs by hand.

    python -m random_programs run --minutes 60 --folder build/random_programs
    python -m random_programs seed 17 --mode views     # makes and runs one
    python -m random_programs file failed.json         # runs one
    python -m random_programs shrink failed.json       # writes failed.min.json
    python -m random_programs serve                    # for the test

Failing programs are kept in the folder. Set PYTHONPATH=tests:tests/integration.
"""

import argparse
import collections
import json
import random
import sys
import time
from pathlib import Path

from random_programs.generator import SIZES
from random_programs.modes import MODES
from random_programs.program import Program
from random_programs.runner import run, run_seed
from random_programs.shrinker import Shrinker


def run_many(args):
    """Runs one seed after the other until the time is over."""
    args.folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * args.minutes
    totals, seed = collections.Counter(), args.first
    while time.monotonic() < end and seed < args.first + args.count:
        mode = args.mode or random.Random(seed).choice(list(MODES))
        result = run_seed(seed, mode, args.size)
        totals.update(result.counts, programs=1)
        found = result.difference
        if found is not None:
            totals[found.kind] += 1
            print(f"{mode} {seed}: {found.kind}: {found.text}", flush=True)
            if result.program is not None:
                result.program.save(args.folder / f"{mode}-{seed}.json")
        seed += 1
    print(dict(totals))
    return any(kind in totals for kind in ("bits", "facts", "error", "crash"))


def run_one(program):
    result = run(program)
    print(result.counts)
    found = result.difference
    print(f"{found.kind}: {found.text}" if found else "the same")
    return found is not None


def make_one(args):
    result = run_seed(args.number, args.mode or "mixed", args.size)
    if result.program is not None:
        print(result.program.text())
        if args.save:
            result.program.save(args.save)
    print(result.counts, result.difference)
    return result.difference is not None


def shrink(args):
    shrinker = Shrinker(Program.load(args.path), args.seconds, args.tries)
    program = shrinker.shrink()
    if program is None:
        print("it does not fail")
        return True
    print(program.text())
    print(f"{shrinker.fault.kind}: {shrinker.fault.text}")
    program.save(args.path.with_suffix(".min.json"))
    return False


def answer(request):
    """To a program, or to a seed."""
    if "program" in request:
        return run(Program.of_dict(request["program"]))
    return run_seed(request["seed"], request["mode"], request["size"])


def serve():
    """Answers lines of JSON with lines of JSON."""
    for line in sys.stdin:
        result = answer(json.loads(line))
        print(json.dumps(result.to_dict()), flush=True)
    return False


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    made = argparse.ArgumentParser(add_help=False)
    made.add_argument("--mode", choices=MODES)
    made.add_argument("--size", choices=SIZES, default="large")
    many = commands.add_parser("run", parents=[made])
    many.add_argument("--first", type=int, default=0, help="the first seed")
    many.add_argument("--count", type=int, default=1 << 60)
    many.add_argument("--minutes", type=float, default=60.0)
    many.add_argument("--folder", type=Path, default="build/random_programs")
    one = commands.add_parser("seed", parents=[made])
    one.add_argument("number", type=int)
    one.add_argument("--save", type=Path)
    commands.add_parser("file").add_argument("path", type=Path)
    small = commands.add_parser("shrink")
    small.add_argument("path", type=Path)
    small.add_argument("--seconds", type=float, default=600.0)
    small.add_argument("--tries", type=int, default=1)
    commands.add_parser("serve")
    args = parser.parse_args()
    if args.command == "run":
        return run_many(args)
    if args.command == "seed":
        return make_one(args)
    if args.command == "file":
        return run_one(Program.load(args.path))
    return shrink(args) if args.command == "shrink" else serve()


if __name__ == "__main__":
    sys.exit(main())
