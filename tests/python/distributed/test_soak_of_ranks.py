"""200 steps on two ranks, whose budgets and drops differ and change."""

import pytest
from rank_results import results
from support import needs_testing

pytestmark = [needs_testing, pytest.mark.slow]


def test_ranks_decide_apart_and_agree_in_every_bit():
    both = results(2, ["soak"])
    both.check("soak")
    assert both.evictions("soak") > 1000
