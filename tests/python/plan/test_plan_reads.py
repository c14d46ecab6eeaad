"""Values that a script reads under plan, where there are none."""

import pytest
import torch
from torch_chameleon.plan import reads


@pytest.fixture
def seen(monkeypatch):
    for name in reads._READS:  # what install() replaces comes back
        monkeypatch.setattr(torch.Tensor, name, getattr(torch.Tensor, name))
    for owner in (torch, torch.Tensor):
        monkeypatch.setattr(owner, "allclose", owner.allclose)
    monkeypatch.setattr(reads, "_PATIENCE", 30)
    monkeypatch.setattr(reads, "_PATIENCE_OF_WHILE", 3)
    made = reads.Reads(__file__)
    made.install()
    return made


def test_a_loop_that_waits_for_a_value_ends(seen):
    def wait():
        x = torch.zeros(2, device="chameleon")
        while x.sum().item() > 0.5:
            pass

    place = r"^test_plan_reads.py:\d+"
    with pytest.raises(
        reads.EndlessLoopError, match=f"{place} has read 3 values since"
    ):
        wait()


def test_a_loop_over_values_may_read_each(seen):
    values = torch.zeros(20, device="chameleon")
    total = 0
    for value in values:
        total += value.item()
    assert total == 20
    assert len(seen.places()) == 1
    with pytest.raises(reads.EndlessLoopError, match="has read 30 values"):
        print([values.sum().item() for _ in range(99)])


def test_steps_may_read_as_often_as_they_like(seen):
    x = torch.zeros(2, device="chameleon")
    for _ in range(20):
        assert x.sum().item() == 1
        seen.step_ended()
    assert len(seen.places()) == 1


def test_what_is_asserted_of_values_is_true(seen, monkeypatch):
    x = torch.zeros(2, device="chameleon")
    checks = compile(
        "assert (x > 3).all(), 'a check'\n"
        "assert not (x < 9).any()\n"
        "if not (x > 4).all(): raise KeyError\n"
        "found = bool((x == 0).all())\n",
        "checks.py",
        "exec",
    )
    names = {"x": x}
    exec(checks, names)
    assert not names["found"]
    assert torch.allclose(x, x + 9)


def test_places_are_counted_apart(seen):
    x = torch.zeros(2, device="chameleon")
    for _ in range(3):
        assert float(x[0]) == 1
        assert not bool(x[0] > 0)
    assert len(seen.places()) == 2
