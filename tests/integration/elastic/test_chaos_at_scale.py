"""Twenty failures of a run on four ranks, and the bits of one without any.

Other seeds: `python tests/integration/elastic/chaos_runs.py SEED...`.
"""

import chaos_runs
import pytest


@pytest.mark.slow
@pytest.mark.parametrize("name", chaos_runs.RUNS)
def test_survives(name, tmp_path):
    if chaos_runs.RUNS[name].way == "healed":
        pytest.importorskip("torchft", reason=chaos_runs.HEAL)
    chaos_runs.check(name, 1, tmp_path)
