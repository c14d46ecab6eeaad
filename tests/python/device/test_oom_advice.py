"""The budget that an out-of-memory text names: enough, and no more than that.

Before a kernel has begun only its operands are known, which the text says.
Once it was refused inside, a kernel that allocates its result alone runs in the
budget that the text names, and in none that is smaller.
tests/python/conformance/databases/test_smallest_budget.py has every op.
"""

import functools
import os
import pathlib
import re

import pytest
import torch
import torch_chameleon
from support import ROOT

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
    paths = [here, ROOT / "tests", os.environ.get("PYTHONPATH", "")]
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


MORE = """
import pytest, torch, torch_chameleon
from test_oom_advice import run
from support import values

x = values("chameleon", 1030, 257)
with pytest.raises(torch.OutOfMemoryError) as error:
    run("512KiB", torch.nn.functional.gelu, x)
assert "allocates beside its operands, or use" in str(error.value)
rnn = torch.nn.LSTM(64, 64, batch_first=True).to("chameleon")
x = values("chameleon", 64, 32, 64)
needed = set()
budget = "700KiB"
for _ in range(20):
    try:
        run(budget, rnn, x)
        break
    except torch.OutOfMemoryError as error:
        text = str(error).split("at least ")[1]
        budget, more = text.split(", or use")[0].split(" and what")
        needed.add(more)
else:
    raise SystemExit("no budget that was named was enough")
assert needed == {" else its kernel allocates"}, needed
"""


def test_a_kernel_that_is_not_known_may_need_more(alone):
    alone(MORE)


class TestTheLimitOfLiveTensors:
    """It is `room` more than what lives already."""

    ROOM = (4 << 20) + 4096

    @pytest.fixture(autouse=True)
    def _limited(self):
        budget = self.ROOM
        live = torch.chameleon.memory_allocated()
        with torch_chameleon.config.patch(
            hbm_budget=budget, oversubscription=(live + self.ROOM) / budget
        ):
            yield

    def test_results_of_ops_count(self):
        x = torch.ones(1 << 18, device="chameleon")  # 1 MiB
        kept = [x * 2 for _ in range(3)]
        before = torch.chameleon.memory_allocated()
        for op in (lambda: x * 2, lambda: torch.stack([x]), x.exp):
            with pytest.raises(torch.OutOfMemoryError, match="live tensors"):
                op()
            assert torch.chameleon.memory_allocated() == before
        assert x.sum() + kept[0].sum() == 3 << 18  # small ones go on

    def test_an_output_that_would_grow_stays_as_it_was(self):
        x = torch.ones(1 << 18, device="chameleon")
        kept = [x * 2 for _ in range(2)]
        out = torch.full((4,), 7.0, device="chameleon")
        with (
            pytest.raises(torch.OutOfMemoryError, match="live tensors"),
            pytest.warns(UserWarning, match="resized"),
        ):
            torch.cat([x, x], out=out)
        del kept
        assert out.untyped_storage().nbytes() == 16

    def test_what_is_larger_than_the_budget_says_so(self):
        with pytest.raises(torch.OutOfMemoryError) as error:
            torch.empty(16 << 20, dtype=torch.uint8, device="chameleon")
        assert "oversubscription or" not in str(error.value)
        assert "hbm_budget to more than this tensor" in str(error.value)


HOST_FULL = """
import re, torch, torch_chameleon

torch_chameleon.config.hbm_budget = "3MiB"
torch_chameleon.config.host_budget = "1MiB"
layers = [torch.nn.Linear(256, 256) for _ in range(8)]
model = torch.nn.Sequential(*layers).to("chameleon")
optimizer = torch.optim.AdamW(model.parameters())
try:
    for _ in range(6):
        x = torch.randn(512, 256, device="chameleon")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    raise SystemExit("no error")
except torch.OutOfMemoryError as error:
    text = str(error)
assert "has no room for more" in text
scale = {"B": 1, "KiB": 2**10, "MiB": 2**20}
said = {
    name: float(number) * scale[unit]
    for name, number, unit in re.findall(
        r"(budget|resident|in one piece) ([\\d.]+) (B|KiB|MiB)", text
    )
}
assert said["in one piece"] <= said["budget"] - said["resident"] + 2**14, text
"""


def test_where_the_host_is_full_the_figures_agree(fresh):
    fresh(HOST_FULL, CHAMELEON_PHYSICAL_DEVICE="cpu")
