"""A lower bound on the duration of a training step with a memory budget.

No schedule that only moves bytes (partial and early moves included) is faster;
`joint_bound_ns` is for schedules that also run ops again.
The module knows nothing of the package that it judges: it reads traces
(`Step.read`) and imports nothing but NumPy and SciPy.

    from bound import Links, Step, lower_bound_ns

    step = Step.read("traces/resnet50_b256.jsonl.gz")
    links = Links(bw_in=55e9, bw_out=55e9, bw_both=90e9)
    bound_ns = lower_bound_ns(step, step.peak_bytes // 2, links)
"""

from .fluid import fluid_bound_ns
from .joint import joint_bound_ns
from .step import Links, Step, Storage
from .windows import window_bound_ns

__all__ = [
    "Links",
    "Step",
    "Storage",
    "fluid_bound_ns",
    "joint_bound_ns",
    "lower_bound_ns",
    "window_bound_ns",
]


def lower_bound_ns(step: Step, budget_bytes: int, links: Links) -> float:
    """The greater of both bounds, in nanoseconds.

    Raises:
        ValueError: No schedule exists: an op alone needs more than the budget.
    """
    return max(
        window_bound_ns(step, budget_bytes, links),
        fluid_bound_ns(step, budget_bytes, links),
    )
