"""The harness sees each kind of difference, and its table is strict."""

import pytest
import torch

from conformance.harness import counting, known_differences, selection, suite
from conformance.harness.compare import difference, observe
from conformance.harness.known_differences import Known
from conformance.harness.pagers import PAGERS
from conformance.harness.placing import Placer
from conformance.harness.suite import Suite


def differs(one, other):
    return difference(observe(lambda _: one(), "cpu"), observe_ours(other))


def observe_ours(make):
    return observe(lambda device: make(), "chameleon")


def ones(*shape, **options):
    return torch.ones(shape, **options)


def nan(payload):
    return torch.tensor([0x7FC00000 + payload], dtype=torch.int32).view(
        torch.float32
    )


def shared():
    base = ones(4)
    return base, base[1:]


def unshared():
    return ones(4), ones(4)[1:]


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        (lambda: ones(2), lambda: ones(2), None),
        (lambda: ones(2), lambda: ones(3), "leaf 0: shape"),
        (lambda: ones(2), lambda: ones(2).double(), "leaf 0: dtype"),
        (lambda: ones(2, 3), lambda: ones(3, 2).T, "leaf 0: strides"),
        (lambda: ones(3)[1:], lambda: ones(3)[:2], "leaf 0: offset"),
        (lambda: ones(2), lambda: ones(3)[:2], "leaf 0: storage bytes"),
        (lambda: ones(2), lambda: ones(2).add_(0), "leaf 0: version"),
        (lambda: ones(2), lambda: ones(2, requires_grad=True), "leaf 0: requi"),
        (lambda: ones(2), lambda: ones(2) * -0.0, "leaf 0: bits: 2 of 2"),
        (lambda: ones(1) * 0, lambda: ones(1) * -0.0, "leaf 0: bits: 1 of 1"),
        (lambda: nan(0), lambda: nan(1), "leaf 0: bits: NaN payloads"),
        (lambda: nan(0), lambda: nan(0), None),
        (shared, unshared, "leaf 1: storage: 0 and 1"),
        (shared, shared, None),
        (lambda: 1, lambda: 1.0, "leaf 0: type"),
        (lambda: float("nan"), lambda: float("nan"), None),
        (lambda: (ones(1),), lambda: [ones(1)], "structure"),
    ],
)
def test_difference(one, other, found):
    said = differs(one, other)
    assert said is None if found is None else said.startswith(found)


def raising(error):
    def action():
        raise error

    return action


def test_difference_of_errors():
    on_cpu = raising(ValueError("not on cpu"))
    assert differs(on_cpu, raising(ValueError("not on chameleon:0"))) is None
    assert "raised" in differs(on_cpu, raising(TypeError("not on cpu")))
    assert "messages" in differs(on_cpu, raising(ValueError("not on cuda")))
    assert "names the cpu" in differs(on_cpu, on_cpu)
    assert "only native raised" in differs(on_cpu, lambda: 1)
    assert "only chameleon raised" in differs(lambda: 1, on_cpu)


def test_placing_keeps_layout_and_aliasing():
    base = torch.arange(24.0)
    tree = [base[2:].as_strided((3, 2), (1, 7)), base, base[3].expand(4)]
    placed = Placer("chameleon")(tree)
    assert len({t.untyped_storage()._cdata for t in placed}) == 1
    for source, copy in zip(tree, placed, strict=True):
        assert copy.device.type == "chameleon"
        assert copy.stride() == source.stride()
        assert copy.storage_offset() == source.storage_offset()
        assert torch.equal(copy.cpu(), source)
    lazy = torch.ones(3, dtype=torch.complex64).conj()
    assert Placer("chameleon")(lazy).is_conj()
    assert Placer("chameleon")(lazy.imag).is_neg()


@pytest.fixture(autouse=True)
def counts(monkeypatch):
    """What these tests count is not the device's."""
    fresh = type(counting.COUNTS)(counting.COUNTS.default_factory)
    monkeypatch.setattr(counting, "COUNTS", fresh)
    return fresh


def wrong_on_chameleon(device):
    return torch.ones(1) * (1 if device == "cpu" else 2)


def right(device):
    return torch.ones(1, device=device)


def row(**options):
    fields = {
        "suite": "ops",
        "name": "f",
        "check": "forward",
        "what": "leaf 0: bits: *",
        "reason": "a test",
    }
    return (Known(**(fields | options)),)


def test_an_unknown_difference_fails(counts):
    harness = Suite("ops")
    harness.case("f", "forward", torch.float32, [right, wrong_on_chameleon])
    with pytest.raises(AssertionError) as failed:
        harness.verify()
    for pager in PAGERS:
        assert f"ops f forward float32 {pager} (seed" in str(failed.value)
        assert counts["ops", "float32", pager] == [1, 0, 0, 2]


@pytest.mark.parametrize(
    ("rows", "action", "passes"),
    [
        (row(), wrong_on_chameleon, True),
        (row(), right, False),
        (row(sometimes=True), right, True),
        (row(what="leaf 0: version: *"), wrong_on_chameleon, False),
        (row(name="g"), wrong_on_chameleon, False),
        (row(dtypes="float64|float16"), wrong_on_chameleon, False),
        ((), right, True),
    ],
)
def test_the_table_is_strict(rows, action, passes, counts, monkeypatch):
    monkeypatch.setattr(known_differences, "KNOWN", rows)
    harness = Suite("ops")
    harness.case("f", "forward", torch.float32, [action], ["never"])
    if passes:
        harness.verify()
        excused = action is wrong_on_chameleon
        figures = [1, int(not excused), int(excused), 1]
        assert counts["ops", "float32", "never"] == figures
    else:
        with pytest.raises(AssertionError):
            harness.verify()


def test_an_entry_that_agrees_fails_only_when_complete(counts, monkeypatch):
    monkeypatch.setattr(known_differences, "KNOWN", row())
    harness = Suite("ops")
    harness.case(
        "f", "forward", torch.float32, [right], ["never"], complete=False
    )
    harness.verify()


def test_nan_payloads_may_vary_where_native_varies():
    payloads = iter(range(100))
    harness = Suite("ops")
    harness.case(
        "f", "forward", "own", [lambda _: nan(next(payloads))], ["never"]
    )
    harness.verify()
    assert not suite.varies(observe(lambda _: nan(1), "cpu"), lambda _: nan(1))


def test_counts_become_a_table(counts, tmp_path, monkeypatch):
    files = [tmp_path / "1.json", tmp_path / "2.json"]
    for file in files:
        counts.clear()
        counting.count("ops", "float32", "never", True, samples=10)
        counting.count("ops", "int8", "never", False, True, 5)
        counting.count("ops", "int8", "tight", True, samples=5)
        counting.count("modes", "", "never", False)
        monkeypatch.setenv("CONFORMANCE_COUNTS", str(file))
        counting.save(0)
    totals = counting.totals(files)
    assert counting.table(totals, dtypes=False).splitlines()[2:] == [
        "| modes | 2 / 0 / 0 |  |  |  | 2 |",
        "| ops | 4 / 2 / 2 |  |  | 2 / 2 / 0 | 40 |",
        "| all | 6 / 2 / 2 |  |  | 2 / 2 / 0 | 42 |",
    ]
    assert counting.table(totals, dtypes=True).splitlines()[2:5] == [
        "| modes |  | 2 / 0 / 0 |  |  |  | 2 |",
        "| ops | float32 | 2 / 2 / 0 |  |  |  | 20 |",
        "| ops | int8 | 2 / 0 / 2 |  |  | 2 / 2 / 0 | 20 |",
    ]


def test_a_table_goes_between_the_markers(tmp_path):
    page = tmp_path / "RESULTS.md"
    page.write_text(f"before\n{counting.BEGIN}\nold\n{counting.END}\nafter\n")
    counting.write(page, "new")
    assert page.read_text() == (
        f"before\n{counting.BEGIN}\nnew\n{counting.END}\nafter\n"
    )


def test_parts_are_disjoint_and_complete(monkeypatch):
    names = [f"test_{i}" for i in range(100)]
    seen = []
    for i in range(1, 4):
        monkeypatch.setenv("CONFORMANCE_PART", f"{i}/3")
        seen += [name for name in names if selection.in_part(name)]
    assert sorted(seen) == sorted(names)
