"""Steps that nobody marked are found, on the simulated clock.

All shapes and their figures: tests/benchmarks/policy/step_marks.py.
"""

import statistics

import pytest
import step_marks
from integration.training_shapes import SHAPES

pytestmark = pytest.mark.slow

STEPS = 20
SLOWEST = ("accumulated_32",)  # the benchmark has it


def milliseconds(shape, marks):
    row = step_marks.figures(shape, 2.0, STEPS, marks)
    assert "error" not in row, row
    return row["ms"]


@pytest.mark.parametrize(
    "shape", [each for each in SHAPES if each not in SLOWEST]
)
def test_unmarked_steps_are_as_fast_as_marked_ones(shape):
    """Within a tenth, which is what trials of plans make of equal runs."""
    marked, unmarked = (milliseconds(shape, m) for m in ("manual", "auto"))
    last = [statistics.median(times[-8:]) for times in (marked, unmarked)]
    assert last[1] < 1.1 * last[0]
