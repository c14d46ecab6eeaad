"""Replicas heal each other by torchft, while those that live go on."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_survival import OURS, assert_nobody_is_left, marked
from torch_chameleon.elastic import chaos

SCRIPT, TIMEOUT_S = Path(__file__).with_name("replica.py"), 240


def steps(folder, replica):
    lines = (folder / f"steps.{replica}").read_text().splitlines()
    return [line.split() for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replicas", "failures"),
    [
        (2, "kill:1:6:backward"),
        (4, "kill:1:6:backward"),
        # Each of them, the others going on.
        (4, "kill:1:6:backward,error:2:30:optimizer,kill:0:55:commit,"
            "full:3:80:forward"),
    ],
)  # fmt: skip
def test_a_replica_heals_from_another(replicas, failures, tmp_path):
    pytest.importorskip("torchft", reason="pip install torch_chameleon[heal]")
    laid = chaos.parse(failures)
    last = str(laid[-1].step + 40)
    environment, mark = marked(laid)
    path = os.pathsep.join([str(SCRIPT.parent), *sys.path[1:]])
    done = subprocess.run(
        [*OURS, "--policy", "heal", "--nproc-per-node", str(replicas),
         "--start-method", "forkserver", "--run-path",
         SCRIPT, tmp_path, last],
        env={**environment, "PYTHONPATH": path,
             "CHAMELEON_HBM_BUDGET": "1MiB"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIMEOUT_S,
        text=True,
        check=False,
    )  # fmt: skip
    print(done.stdout)  # how long it was until they were back
    assert done.returncode == 0, done.stdout
    assert_nobody_is_left(mark)
    said = re.search(
        r"\nelastic: (\d) failures? \((.*)\); (\w+) steps? lost; back after ",
        done.stdout,
    )
    assert said, done.stdout
    assert said[1] == str(len(laid))
    assert {*said[2].split(", ")} == {"healed"}
    assert said[3] == "no" or int(said[3]) <= len(laid)
    made = [steps(tmp_path, replica) for replica in range(replicas)]
    bits = {}  # the same after each step, whoever made it
    for step, _, digest in itertools.chain(*made):
        assert bits.setdefault(step, digest) == digest
    for failure in laid:
        lived = (tmp_path / f"lives.{failure.rank}").read_text().splitlines()
        begun, healed = map(int, lived[1].split())
        assert failure.step - 1 <= begun <= failure.step + 1
        assert begun <= healed
    counts = {int(count) for _, count, _ in itertools.chain(*made)}
    assert replicas - 1 in counts  # meanwhile they went on
    assert {each[-1][0] for each in made} == {last}
    assert {each[-1][2] for each in made} == {bits[last]}
