"""The budget that an out-of-memory text names: enough, and no more than that.

Before a kernel has begun only its operands are known, which the text says.
Once it was refused inside, a kernel that allocates its result alone runs in the
budget that the text names, and in none that is smaller.
tests/python/conformance/test_smallest_budget.py has every op.
"""

import functools
import os
import pathlib
import re

import pytest
import torch
import torch_chameleon

ADVICE = re.compile(
    r"inside the kernel (?P<inside>.*)\); .*hbm_budget to at least "
    r"(?P<budget>[\d.]+ \w+)(?P<unknown> and what its kernel allocates)?"
)
ONE_RESULT = """
import re, pytest, torch, torch_chameleon
from test_oom_advice import ADVICE, run
from support import MIB, values
for action in (
    lambda x: x + x,
    lambda x: x @ x.T,
    lambda x: x.softmax(1),
    lambda x: torch.cat([x, x]),
    lambda x: x.cumsum(0),
    torch.exp,
    torch.fft.rfft,
    torch.nonzero,
):
    operand = values("chameleon", 1030, 257)
    with pytest.raises(torch.OutOfMemoryError) as error:
        run(MIB // 2, action, operand)
    first = ADVICE.search(str(error.value))
    assert first["inside"] == "0 B"
    assert first["unknown"]
    with pytest.raises(torch.OutOfMemoryError) as error:
        run(first["budget"], action, operand)
    second = ADVICE.search(str(error.value))
    assert not second["unknown"]
    run(second["budget"], action, operand)
    with torch_chameleon.config.patch(hbm_budget=second["budget"]):
        named = torch_chameleon.config.hbm_budget
    with pytest.raises(torch.OutOfMemoryError):
        run(named - named // 64, action, operand)
    del error
"""


def run(budget, action, operand):
    with torch_chameleon.config.patch(hbm_budget=budget, oversubscription=1e6):
        action(operand)
        torch.chameleon.synchronize()


@pytest.fixture
def alone(fresh):
    """Runs a program alone in a process, which finds the tests' modules."""
    here = pathlib.Path(__file__).parent
    paths = [here, here.parent, os.environ.get("PYTHONPATH", "")]
    return functools.partial(fresh, PYTHONPATH=os.pathsep.join(map(str, paths)))


def test_the_budget_that_is_named_is_enough(alone):
    """Where nothing ran before from which its need is known."""
    alone(ONE_RESULT)


PINNED = """
import pytest, torch, torch_chameleon
from test_oom_advice import ADVICE, run
from support import MIB, values

operand = values("chameleon", 1030, 257)
kept = values("chameleon", 257, 257)
torch.exp(operand)  # from here on its result is known
with torch_chameleon.resident(kept):
    with pytest.raises(torch.OutOfMemoryError) as error:
        run(2 * MIB, torch.exp, operand)
    text = str(error.value)
    assert "pinned 258.50 KiB" in text
    run(ADVICE.search(text)["budget"], torch.exp, operand)
with pytest.raises(torch.OutOfMemoryError, match="pinned 0 B") as error:
    run(2 * MIB, torch.exp, operand)
run(ADVICE.search(str(error.value))["budget"], torch.exp, operand)
"""

SPLIT = """
import pytest, torch, torch_chameleon
from test_oom_advice import ADVICE, run
from support import MIB, values

operand = values("chameleon", 1030, 257)
torch.exp(operand)  # from here on its result is known
below = torch.zeros(1000 * 1024, dtype=torch.uint8, device="chameleon")
kept = values("chameleon", 257, 257)
with torch_chameleon.resident(kept):
    with pytest.raises(torch.OutOfMemoryError) as error:
        run("2.3 MiB", torch.exp, operand)
    text = str(error.value)
    assert "pinned 258.50 KiB" in text
    run(ADVICE.search(text)["budget"], torch.exp, operand)
"""


@pytest.mark.parametrize("program", [PINNED, SPLIT], ids=["below", "between"])
def test_what_others_hold_is_pinned(program, alone):
    """In a process of its own: where it lies is part of the test."""
    alone(program)


SEVERAL = """
import re, torch, torch_chameleon
ops = {
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (257,)),
    "std_mean": lambda x: torch.std_mean(x, 1),
    "sort": lambda x: x.sort(1),
    "median": lambda x: x.median(1),
}
x = torch.rand(1030, 257, device="chameleon")
for name, op in ops.items():
    op(x)
    torch_chameleon.config.hbm_budget = "512KiB"
    try:
        op(x)
    except torch.OutOfMemoryError as error:
        named = re.search("at least ([^,]*), or use", str(error))[1]
    torch_chameleon.config.hbm_budget = named
    op(x)
    torch_chameleon.config.hbm_budget = "64MiB"
"""


def test_the_first_advice_does_for_a_kernel_that_allocates_several_times(fresh):
    """It ran with room to spare before, in the same sizes."""
    fresh(SEVERAL)
