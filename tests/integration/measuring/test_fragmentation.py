"""What is lost to fragmentation: the figures of PyTorch's allocator, exactly.

Those of the pager are tests/benchmarks/fragmentation/fragmentation_test.cpp.
"""

import functools
import subprocess
import sys

import emulated_cuda
import pytest
import torch
from fragmentation import allocators, events, page
from support import ROOT

STEPS = 2000  # as run.py has them
EXAMPLE = """
import sys
sys.path[:0] = sys.argv[1:]
import allocator_alone
import torch
from fragmentation import record

def training():
    torch.manual_seed(0)
    step = allocator_alone.training()
    return [lambda n=n: step(n) for n in allocator_alone.lengths(8)]

sys.stdout.write(record.trace_of("example", training))
"""
SMALL = ("resnet50_b256", "llama_1.3b_fused_adamw")

trace_of = functools.cache(lambda name: events.read(events.TRACES[name]))
needs_cuda = pytest.mark.skipif(
    not emulated_cuda.can_be_built(), reason=emulated_cuda.NEEDS
)
of_that_torch = pytest.mark.skipif(
    not torch.__version__.startswith("2.11."),
    reason="the figures are of torch 2.11's allocator",
)


@pytest.mark.parametrize("name", SMALL)
def test_what_is_freed_was_allocated(name):
    trace, kept = trace_of(name), page.kept()[name]
    live, steps, most = {}, [], 0
    for event in trace.events.splitlines():
        kind, *numbers = event.split()
        if kind == "a":
            assert numbers[0] not in live
            live[numbers[0]] = -(-int(numbers[1]) // 512) * 512
            most = max(most, sum(live.values())) if len(steps) < 2 else most
        elif kind == "f":
            del live[numbers[0]]
        else:
            steps.append(dict(live))
    assert trace.ops == kept["ops"]
    assert trace.peak_bytes == most == kept["peak_bytes"]
    assert trace.steady_steps == events.STEADY_STEPS
    assert len(steps) == events.FIRST_STEPS + events.STEADY_STEPS
    assert all(step == steps[0] for step in steps)


@needs_cuda
@of_that_torch
@pytest.mark.parametrize("allocator", allocators.TORCH, ids=lambda x: x.name)
@pytest.mark.parametrize("name", SMALL)
def test_pytorchs_allocator_needs_what_the_page_says(name, allocator):
    trace, kept = trace_of(name), page.kept()[name][allocator.name]["smallest"]
    parts = round(kept["lost"] * STEPS)

    def figures(parts):
        card = trace.peak_bytes + trace.peak_bytes * parts // STEPS
        return allocator.figures(trace, card)

    assert page.rounded({"lost": parts / STEPS, **figures(parts)}) == kept
    assert figures(parts - 1) is None


@needs_cuda
def test_the_example_fits_where_pytorchs_allocator_does_not():
    """And 5 % more than what is live is not enough for that."""
    folders = [ROOT / "tests" / "benchmarks", ROOT / "python" / "examples"]
    done = subprocess.run(
        [sys.executable, "-c", EXAMPLE, *map(str, folders)],
        capture_output=True,
        text=True,
        check=True,
    )
    trace = events.from_text(done.stdout)
    for allocator in allocators.TORCH:
        assert allocator.figures(trace, trace.peak_bytes * 105 // 100) is None
    allocators.build_chameleon()
    use = allocators.CHAMELEON.figures(trace, trace.peak_bytes)
    assert use is not None
    assert use["link_bytes"] == 0
