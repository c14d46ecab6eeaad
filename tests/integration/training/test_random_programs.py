"""Random eager programs, natively and on chameleon, compared bit for bit.

A sample; `python -m random_programs run` goes on for hours (tests/README.md).
"""

import json
import os
import subprocess
import sys

import pytest
from random_programs.comparison import Difference
from random_programs.modes import MODES
from random_programs.program import MILDEST, Program
from random_programs.runner import Result
from random_programs.shrinker import Shrinker
from support import ROOT, needs_testing

pytestmark = needs_testing

TESTS = ROOT / "tests"
SEEDS = range(8)  # of each mode


class Server:
    """A process that runs programs, each in a fork of its own.

    The tests' process has used the device, so that no fork of it may.
    """

    def __init__(self):
        paths = [TESTS / "integration", TESTS, os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "OMP_NUM_THREADS": "1",
            "CHAMELEON_PHYSICAL_DEVICE": "cpu",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "random_programs", "serve"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return Result.of_dict(json.loads(self.process.stdout.readline()))

    def close(self):
        self.process.stdin.close()
        self.process.wait()


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.close()


def check(result):
    program = result.program.text() if result.program else "no program"
    assert result.difference is None, f"{result.difference}\n{program}"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", MODES)
def test_a_small_program(server, mode, seed, record_property):
    result = server.run(seed=seed, mode=mode, size="small")
    check(result)
    assert result.counts["ops"] > 0
    record_property("random_operations", result.counts["ops"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 108))
@pytest.mark.parametrize("mode", MODES)
def test_a_large_program(server, mode, seed):
    check(server.run(seed=seed, mode=mode, size="large"))


def program(*lines, setup=("p0 = rnd((64, 64), 1)",), **settings):
    return Program(
        1, list(setup), {"b0": list(lines)}, [("b0", 1)], MILDEST | settings
    )


# What programs found, at its smallest.
FOUND = {
    "ldexp with integers": program("p0.ldexp_(p0.long() % 3)"),
    "list ops beside a native alias": program(
        "with native(p0) as n_: torch._foreach_add_([p0], 1.0); n_.mul_(2)"
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_programs_found(server, name):
    check(server.run(program=FOUND[name].to_dict()))


# ---- the test itself -------------------------------------------------------
BROKEN = "chameleon: p0.mul_(2)"


def test_a_difference_is_found(server):
    found = server.run(program=program(BROKEN).to_dict()).difference
    assert found.kind == "bits"
    assert "p0: 4096 of 4096 elements" in found.text


@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        ("chameleon: p0.resize_(7)", "facts", "'shape'"),
        ("chameleon: raise KeyError('planned')", "ours", "planned"),
        ("t1 = 1 if D == 'cpu' else [][0]", "error", "list index"),
        ("chameleon: del p0", "facts", "p0 is not there"),
        ("chameleon: import os; os.abort()", "crash", "Aborted"),
        ("import os; os.abort()", "native", "Aborted"),
    ],
)
def test_every_kind_of_difference(server, line, kind, text):
    found = server.run(program=program(line).to_dict()).difference
    assert found.kind == kind
    assert text in found.text


def test_a_program_shrinks():
    def run(program):
        """Fails where p1 is there and the broken line runs twice."""
        times = max((n for b, n in program.schedule if b == "b0"), default=0)
        fails = (
            any(line.startswith("p1 = ") for line in program.setup)
            and BROKEN in program.bodies.get("b0", [])
            and times >= 2
            and program.settings["evict"] == "random"
        )
        found = Difference("bits", "planted") if fails else None
        return Result(found, program, {})

    lines = [f"t{number} = p1 + {number}" for number in range(8)]
    large = program(
        *(*lines[:5], BROKEN, *lines[5:], "chameleon: tc.step()"),
        setup=[f"p{number} = rnd((8, 8), {number})" for number in range(4)],
        evict="random",
        drop="random",
        hbm_budget=1 << 20,
    )
    large.bodies["b1"] = lines
    large.schedule = [("b0", 12), ("b1", 2), ("b0", 1)]
    small = Shrinker(large, run=run).shrink()
    assert small.bodies == {"b0": [BROKEN]}
    assert small.setup == ["p1 = rnd((8, 8), 1)"]
    assert small.schedule == [("b0", 2)]
    assert small.settings == MILDEST | {"evict": "random"}
    assert Shrinker(program(), run=run).shrink() is None


def test_a_seed_is_one_program(server):
    """Also in another process, or a failure could not be looked at again."""
    first, second = (
        server.run(seed=3, mode="mixed", size="small") for _ in range(2)
    )
    assert first.program == second.program
