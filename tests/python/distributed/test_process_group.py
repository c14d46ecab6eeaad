"""Every collective has the bits of gloo's on CPU tensors, under swapping."""

import pytest
from rank_results import results
from support import needs_testing

pytestmark = needs_testing

COLLECTIVES = [
    "broadcast",
    "all_reduce",
    "all_reduce_sparse",
    "all_reduce_coalesced",
    "reduce",
    "all_gather",
    "gather_and_scatter",
    "reduce_scatter",
    "all_to_all_single",
    "point_to_point",
    "objects",
    "groups",
    "functional_collectives",
    "interleaved",
    "groups_made_anew",
]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_two_ranks(name):
    results(2, COLLECTIVES).check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", COLLECTIVES)
def test_four_ranks(name):
    results(4, COLLECTIVES).check(name)
