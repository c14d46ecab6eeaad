"""Replicas heal each other by torchft, while those that live go on."""

import chaos_runs
import pytest
from torch_chameleon.elastic import chaos


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replicas", "failures"),
    [
        (2, "kill:1:6:backward"),
        (4, "kill:1:6:backward"),
        # Each of them, the others going on.
        (4, "kill:1:6:backward,error:2:30:optimizer,kill:0:55:commit,"
            "full:3:80:forward"),
        # What it had itself is gone, too.
        (2, "lose:0:6:forward"),
    ],
)  # fmt: skip
def test_a_replica_heals_from_another(
    replicas, failures, tmp_path, monkeypatch
):
    pytest.importorskip("torchft", reason=chaos_runs.HEAL)
    # Else one may be back before torchft takes it for dead, after a second, and
    # nobody sees the others go on.
    monkeypatch.setenv("LATER_S", "4")
    made = chaos.parse(failures)
    run = chaos_runs.RUNS["healed"]._replace(
        ranks=replicas, failures=made[-1].step + 40, apart=1
    )
    found = chaos_runs.heal(run, made, tmp_path)
    print(found.printed)  # how long it was until they were back
