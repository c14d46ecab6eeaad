"""Schedules of failures: the same for a seed, and what is wrong is named."""

import collections

import pytest
from torch_chameleon.elastic import chaos


def test_a_seed_is_a_schedule():
    made = [chaos.schedule(seed, 5, ranks=4, steps=20) for seed in range(50)]
    assert made == [chaos.schedule(s, 5, ranks=4, steps=20) for s in range(50)]
    drawn = [failure for each in made for failure in each]
    assert len(drawn) == 250
    for each in made:
        steps = [failure.step for failure in each]
        assert steps == sorted(set(steps))
    assert {x.kind for x in drawn} == chaos.KINDS.keys() - {"stop", "lose"}
    assert {x.phase for x in drawn} == set(chaos.PHASES)
    assert {x.rank for x in drawn} == {0, 1, 2, 3}
    counts = collections.Counter((x.kind, x.phase) for x in drawn)
    for kind in ("flip", "tear"):
        assert not counts[kind, "optimizer"] + counts[kind, "commit"]


def test_a_schedule_s_text_is_the_schedule():
    for seed in range(20):
        made = chaos.schedule(seed, seed % 5, 2, 9, kinds=tuple(chaos.KINDS))
        assert chaos.parse(chaos.text(made)) == made


@pytest.mark.parametrize(
    "text",
    ["kill", "kill:0:1", "kill:0:1:sleep", "burn:0:1:commit", "kill:a:1:commit",
     "kill:-1:1:commit", "kill:0:-1:commit", "kill:0:1:commit:2",
     "kill:0:1:commit;"],
)  # fmt: skip
def test_a_text_that_says_nothing(text):
    with pytest.raises(ValueError, match="CHAMELEON_CHAOS: .* is not KIND:"):
        chaos.parse(text)


def test_more_failures_than_steps():
    with pytest.raises(ValueError, match="failures = 4 must be within"):
        chaos.schedule(0, 4, ranks=1, steps=3)
    assert len(chaos.schedule(0, 3, ranks=1, steps=3)) == 3


def test_no_ranks():
    with pytest.raises(ValueError, match="ranks = 0 must be at least 1"):
        chaos.schedule(0, 1, ranks=0, steps=3)
