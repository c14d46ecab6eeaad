"""python -m torch_chameleon plan."""

import json
import pathlib
from typing import Any

import pytest
from torch_chameleon import _C
from torch_chameleon import _units as units
from torch_chameleon.plan import (
    arguments,
    cards,
    curve,
    machine,
    planner,
    report,
    runs,
    sentences,
    sizes,
    steps,
    traces,
)

MEGA = 1_000_000
HEADER = {
    "trace": 1,
    "name": "hand",
    "hbm_budget": 0,
    "bw_in": 5e10,
    "bw_out": 5e10,
    "bw_both": 9e10,
    "copy_latency_ns": 0,
}


def op(name: str, *storages: int, size: int = 100 * MEGA) -> dict[str, Any]:
    return {
        "op": name,
        "t": 0,
        "dur_ns": MEGA,
        "in": [[each, size] for each in storages],
        "out": [],
        "write": [],
        "free": [],
    }


def written(folder: pathlib.Path, *ops: dict[str, Any]) -> str:
    file = folder / "trace.jsonl"
    lines = [HEADER, *ops, {"step": 1}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(file)


@pytest.fixture
def trace(tmp_path: pathlib.Path) -> str:
    return written(
        tmp_path, op("a", 1), op("aten::_foreach_x", 1, 2), op("b", 2)
    )


def test_lists_are_no_largest_op(trace):
    assert traces.largest_op(trace) == ("a", 100 * MEGA)


def test_a_piece_of_lists_has_a_tensor_of_each(tmp_path):
    """One parameter with its gradient and two moments; and three of them."""
    name = "aten::_fused_adamw_"
    one = written(tmp_path, op("a", 1, 2, 3), op(name, *range(4)))
    assert traces.largest_op(one) == (name, 400 * MEGA)
    name = "aten::_foreach_mul_.List"
    three = written(tmp_path, op("a", 1), op(name, *range(6)))
    assert traces.largest_op(three) == (name, 200 * MEGA)


def test_swapping_alone_is_the_planner_s_model(trace):
    assert traces.swapping_ns(trace, 200 * MEGA) == 3 * MEGA
    assert traces.swapping_ns(trace, 10 * MEGA) is None
    assert traces.swapping_ns(trace, None) is None


def test_a_trace_that_is_none_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a long path is not quoted to its end
    with pytest.raises(ValueError, match="nothing.jsonl"):
        _C.what_if("nothing.jsonl", [], 1.0)


def test_profiles_have_names_and_memory():
    cards = {row["name"]: row["memory_bytes"] for row in _C.gpu_profiles()}
    assert cards["rtx4090"] == 24 << 30


FIGURES = {
    "script": "train.py",
    "gpu": "rtx4090",
    "budget_bytes": 24 << 30,
    "budget_is_given": True,
    "budget_source": "--budget",
    "memory_bytes": 24 << 30,
    "host_budget_bytes": 64 << 30,
    "host_source": "--host",
    "host_share": 1.0,
    "oversubscription": 4.0,
    "oversubscription_source": "the default of config.oversubscription",
    "peak_bytes": 30 << 30,
    "least_budget_bytes": 7680 << 20,
    "largest_op": "aten::mm",
    "largest_op_bytes": 1 << 20,
    "in_memory_ns": 1e8,
    "step_ns": 2e8,
    "swapping_ns": 3e8,
    "stall_ns": 1e8,
    "bytes_in": 10**9,
    "bytes_out": 10**9,
    "host_bytes": 1 << 30,
    "peak_host_bytes": 2 << 30,
    "settled": True,
    "steps": 8,
    "to_fuse": ["AdamW"],
    "peaks_after": {"fused": 20 << 30},
    "seen": {
        "seen": 8,
        "sizes": 1,
        "with_more_ops": 0,
        "with_fewer_ops": 0,
        "highest": None,
        "highest_bytes": 30 << 30,
        "usual_bytes": 30 << 30,
        "longest": None,
        "longest_ns": None,
        "ended": False,
        "changing": False,
        "asked": 8,
    },
    "trust": {"sentence": "are modelled; for transformers"},
    "curve": [],
    "reads": [],
    "sizes": {},
    "share": 1.0,
    "kept_away": {},
}


@pytest.mark.parametrize(
    ("figures", "sentence"),
    [
        ({"fits": "in memory"}, "yes, 24.0 GiB hold all of it"),
        ({"fits": "in memory"}, "times      are modelled; for transformers"),
        ({"fits": "swapped"}, "a step takes 2.00 times its time in memory"),
        (
            {"fits": "no", "why": "budget", "limit": "oversubscription"},
            "no, not into 24.0 GiB: it needs 7.50 GiB, since tensors may be 4 "
            "times the budget (the default of config.oversubscription) and its "
            "peak is 30.0 GiB; --oversubscription 1.3 allows for that",
        ),
        (
            {"fits": "no", "why": "budget", "limit": "op"},
            "it needs 7.50 GiB, for aten::mm alone",
        ),
        (
            {
                "fits": "in memory",
                "moved": {"steps": 2, "of": 7, "bytes": 3_000_000},
            },
            "yes, 24.0 GiB hold all of it; 2 of 7 steps moved 3.00 MB, the "
            "others nothing",
        ),
        (
            {"fits": "no", "why": "budget", "limit": "run", "error": "OOM"},
            "no, not into 24.0 GiB: a run within it ended with OOM",
        ),
        (
            {"fits": "not known", "failure": "train.py:7: KeyError: 'x'"},
            "not known: behind step 8 the script failed with train.py:7: "
            "KeyError: 'x'; --steps 8 looks at those before it alone",
        ),
        (
            {"fits": "no", "why": "host", "host_bytes": 99 << 30},
            "no, the host is too small: it needs 99.0 GiB, and has 64.0 GiB "
            "(--host)",
        ),
        (
            {"fits": "swapped", "settled": False, "steps": 3},
            "the script made only 3 steps",
        ),
        (
            {"fits": "swapped", "reads": ["train.py:7"]},
            "1 or False were read at train.py:7",
        ),
        (
            {"fits": "swapped"},
            "  change     fused=True for AdamW: a peak of 20.0 GiB, modelled",
        ),
    ],
)
def test_the_report_answers(figures, sentence):
    assert sentence in report.text_of(FIGURES | figures)


def test_answers_fit_a_terminal():
    figures = FIGURES | {"fits": "swapped", "reads": ["train.py:7"] * 9}
    wrapped = report.text_of(figures, 80)
    assert max(map(len, wrapped.splitlines())) <= 80
    whole = report.text_of(figures)
    assert wrapped.split() == whole.split()


def test_the_help_fits_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        arguments.parse(["--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_units_that_read_well():
    assert units.duration(15.5e9) == "15.5 s"
    assert units.duration(1_018_000) == "1.02 ms"
    assert units.duration(999_900) == "1.00 ms"
    assert units.decimal(64e6) == "64.0 MB"
    assert units.size(60 << 20) == "60.0 MiB"
    assert units.size(0) == "0 bytes"


def test_less_memory_is_never_faster():
    figures = FIGURES | {"fits": "swapped", "budget_bytes": 20, "step_ns": 3e8}
    rows = [
        {"budget_bytes": 10, "step_ns": 2e8, "swapping_ns": None},
        {"budget_bytes": 30, "step_ns": 9e7, "swapping_ns": 9e7},
    ]
    curve.order(figures, rows)
    assert [row["step_ns"] for row in rows] == [1e8, 3e8]
    assert [row["swapping_ns"] for row in rows] == [1e8, None]
    assert figures["step_ns"] == 3e8


def test_swapping_alone_is_no_faster_than_what_ships():
    figures = FIGURES | {"fits": "in memory"}
    rows = [{"budget_bytes": 10, "step_ns": 3e8, "swapping_ns": 2e8}]
    curve.order(figures, rows)
    assert rows[0]["swapping_ns"] == 3e8


def point_of(budget: int, step: int, moved: int = 9) -> dict[str, Any]:
    names = ("stall_ns", "bound_ns", "settled", "steps")
    one = dict.fromkeys(names, 0) | {
        "budget": budget,
        "duration_ns": step,
        "ops": 10,
        "bytes_in": moved,
        "bytes_out": moved,
        "host_bytes": 4 << 30,
        "peak_host_bytes": 5 << 30,
        "trace": "",
    }
    return one | {"each": [one, one]}


def test_cards_say_what_the_answer_says(monkeypatch, tmp_path):
    """Of the same card; what swaps, what has no host, what is too small."""
    (tmp_path / "train.py").write_text("")
    options = arguments.parse(["--gpu", "l4", str(tmp_path / "train.py")])
    found = planner.Planner(options, runs.Runs(options, tmp_path))
    found.steps = [step_of(10, 100), step_of(10, 100)]
    found.oversubscription = 4.0
    found.peak, found.op_bytes = 20 << 30, 13 << 30

    def points(gpu, budgets, has_traces=True):
        assert gpu != "l4"  # it has been asked about
        moved = 9 if gpu == "rtx4090" else 0
        small = gpu == "rtx3090"
        last = None if small else point_of(budgets[-1], 300, moved)
        return [point_of(0, 100), last][: len(budgets)]

    def run(gpu, budgets, has_host=True):
        assert gpu == "rtx3090"
        return {"points": [] if has_host else [point_of(budgets[0], 300)]}

    monkeypatch.setattr(found.runs, "points", points)
    monkeypatch.setattr(found.runs, "run", run)
    answer = {
        "gpu": "l4",
        "budget_bytes": machine.default_budget(
            _C.gpu_profile("l4")["memory_bytes"]
        ),
        "in_memory_ns": 617,
        "fits": "swapped",
        "step_ns": 634,
    }
    rows = {row["gpu"]: row for row in cards.rows_of(found, answer)}
    names = ("in_memory_ns", "step_ns", "fits", "why")
    assert {
        name: tuple(rows[name][each] for each in names)
        for name in ("t4", "l4", "rtx4090", "rtx3090", "a10", "h200")
    } == {
        "t4": (100, None, "no", "budget"),
        "l4": (617, 634, "swapped", None),
        "rtx4090": (100, 300, "swapped", None),  # its peak just fits
        "rtx3090": (100, None, "no", "host"),
        "a10": (100, 100, "in memory", None),
        "h200": (100, 100, "in memory", None),
    }
    text = report.tables_of(FIGURES | {"cards": [*rows.values()]})
    assert "617 ns  634 ns            1.03" in text
    assert "100 ns       -  host too small" in text


@pytest.mark.slow
@pytest.mark.parametrize("fits", ["swapped", "in memory", "no"])
def test_the_plot_has_the_whole_curve(tmp_path, fits):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from torch_chameleon.plan.plot import write_plot

    row = {"budget_bytes": 20 << 30, "step_ns": 2e8, "swapping_ns": None}
    figures = FIGURES | {"fits": fits, "why": "budget", "curve": [row]}
    write_plot(tmp_path / "plan.svg", figures)
    assert "</svg>" in (tmp_path / "plan.svg").read_text()


def step_of(
    ops: int, duration: float, plan: int = 1, peak: int = 50
) -> dict[str, Any]:
    return {
        "ops": ops,
        "duration_ns": duration,
        "compute_ns": duration,
        "peak_bytes": peak,
        "bytes_in": 5,
        "bytes_out": 5,
        "plan": {"actions": plan, "modelled_duration_ns": 1},
    }


def test_a_validation_pass_is_no_step():
    found = [step_of(12, 90), *(step_of(10, 50) for _ in range(2))]
    found += [step_of(30, 120), step_of(10, 52)]
    assert steps.figures_of(found)["duration_ns"] == 50
    assert not steps.are_enough(found[:2], 8)  # one is no comparison
    assert steps.are_enough(found[:3], 8)
    assert not steps.are_enough(found[:4], 4)  # it ends with the other kind
    assert steps.are_enough(found, 4)


@pytest.mark.parametrize(("before", "now"), [(0, 0), (0, 3), (2, 3)])
def test_steps_are_compared_when_there_is_a_plan(before, now):
    found = [step_of(12, 90), step_of(10, 50, before), step_of(10, 50, now)]
    assert not steps.are_enough(found, 8)
    assert steps.are_enough([*found, step_of(10, 50, 3)], 8) == (now == 3)


def test_a_plan_that_moves_nothing_takes_over():
    still = step_of(10, 50) | {"bytes_in": 0, "bytes_out": 0}
    found = [step_of(10, 90), step_of(10, 50, 3), still]
    assert not steps.are_enough(found, 8)
    assert steps.are_enough([*found, still], 8)


SMALL, LARGE = step_of(10, 50), step_of(10, 500, peak=900)


def numbered(*given: dict[str, Any]) -> list[dict[str, Any]]:
    return [each | {"number": number} for number, each in enumerate(given)]


def test_steps_are_seen_until_they_are_alike():
    found = [step_of(12, 90), *[SMALL] * 3]
    assert not sizes.are_seen(found, 8)
    assert sizes.are_seen(found + [SMALL] * 4, 8)
    assert not sizes.are_seen([*found, *[SMALL] * 3, LARGE], 8)
    assert sizes.are_seen([*found, *[SMALL] * 3, LARGE, *[SMALL] * 3], 8)
    assert sizes.are_seen([step_of(12, 90), SMALL], 2)
    assert sizes.last_new([*found, LARGE, SMALL]) == 4


def test_steps_that_always_change_end_some_time():
    found = [step_of(10, 1.1**number) for number in range(32)]
    assert not sizes.are_seen(found[:31], 8)
    assert sizes.are_seen(found, 8)
    assert sizes.are_changing(found, 8)


@pytest.mark.parametrize("number", [0, 1, 4])
def test_the_largest_step_is_named(number):
    found = [SMALL] * 8
    found[number] = LARGE
    told = sizes.summary(numbered(*found))
    assert (told["seen"], told["sizes"]) == (8, 2)
    assert told["highest"] == number + 1
    assert (told["highest_bytes"], told["usual_bytes"]) == (900, 50)
    # How long the first one takes is not known: it sets everything up.
    assert told["longest_ns"] == (500 if number else None)
    text = sentences.steps(FIGURES | {"seen": FIGURES["seen"] | told})
    assert "8 seen, of 2 sizes" in text
    assert f"the {sentences.ordinal(number + 1)} took the most" in text


def test_the_last_step_of_each_size_is_looked_at():
    """Not the first two, whose traces have tensors live too long."""
    found = numbered(SMALL, LARGE, SMALL, LARGE, SMALL)
    assert sizes.last_of_each(found) == [found[4], found[3]]
    assert sizes.last_of_each(found[:3]) == [found[2]]
    assert sizes.last_of_each(found[:2]) == []


def test_steps_with_a_validation_pass_are_counted():
    found = numbered(*[SMALL] * 4, step_of(30, 700, peak=900), *[SMALL] * 3)
    told = sizes.summary(found)
    assert (told["with_more_ops"], told["with_fewer_ops"]) == (1, 0)
    assert told["highest"] == told["longest"] == 5
    text = sentences.steps({"seen": FIGURES["seen"] | told})
    assert "; 1 with more ops than most, as a validation pass has" in text


def test_a_step_of_one_of_several_optimizers_is_no_validation_pass():
    """The first steps of a GAN end before its optimizers are known."""
    told = sizes.summary(numbered(SMALL, step_of(5, 20), *[SMALL] * 6))
    assert (told["with_more_ops"], told["with_fewer_ops"]) == (0, 1)
    text = sentences.steps({"seen": FIGURES["seen"] | told})
    assert "; 1 with fewer ops than most, as where one of several" in text


def test_steps_that_are_alike_are_said_to_be():
    told = sizes.summary(numbered(step_of(12, 90), *[SMALL] * 7))
    seen = FIGURES["seen"] | told
    assert sentences.steps({"seen": seen}) == "8 seen, alike but for the first"
    seen |= {"ended": True}
    assert "then the script ended" in sentences.steps({"seen": seen})
    seen |= {"ended": False, "changing": True}
    assert "--steps 16 sees more" in sentences.steps({"seen": seen})


def test_steps_of_one_size_are_compared():
    """A time within the budget and one in memory are of the same steps."""
    found = numbered(SMALL, SMALL, LARGE, SMALL, LARGE)
    within = [step | {"duration_ns": 900} for step in found]
    assert sizes.like(found, within, LARGE) == [within[2], within[4]]


def test_steps_that_are_all_different_have_no_kind_that_is_usual():
    found = [step_of(ops, ops) for ops in (99, 10, 40, 30, 20)]
    assert steps.figures_of(found)["ops"] == 20  # of the later half
    assert [sentences.ordinal(number) for number in (1, 2, 3, 11, 23)] == [
        "1st",
        "2nd",
        "3rd",
        "11th",
        "23rd",
    ]


def test_a_row_that_was_faster_by_itself_is_marked():
    figures = FIGURES | {"fits": "in memory"}
    rows = [
        {"k": 1.5, "budget_bytes": 20, "step_ns": 3e8, "swapping_ns": None},
        {"k": 3.0, "budget_bytes": 10, "step_ns": 2e8, "swapping_ns": None},
    ]
    curve.order(figures, rows)
    text = report.tables_of(figures | {"curve": rows})
    assert text.count("3.00*") == 1
    assert "* by itself 2.00" in text


def test_the_answer_stays_what_was_said():
    figures = FIGURES | {"fits": "swapped", "budget_bytes": 20}
    rows = [{"budget_bytes": 30, "step_ns": 9e8, "swapping_ns": None}]
    curve.order(figures, rows)
    assert rows[0]["step_ns"] == figures["step_ns"] == 2e8


@pytest.mark.parametrize(
    ("op_bytes", "oversubscription", "budget", "limit"),
    [(1, 4.0, 24, "oversubscription"), (50, 4.0, 24, "op"), (1, 6.0, 24, None)],
)
def test_the_limit_that_binds(
    tmp_path, op_bytes, oversubscription, budget, limit
):
    (tmp_path / "train.py").write_text("")
    options = arguments.parse([str(tmp_path / "train.py")])
    found = planner.Planner(options, runs.Runs(options, tmp_path))
    found.peak, found.op_bytes = 100 << 20, op_bytes << 20
    found.oversubscription = oversubscription
    bytes_ = budget << 20
    assert found.depends(bytes_) == (limit is None)
    if limit is not None:
        answer = found.answer_of("t4", bytes_, 1, None)
        assert answer == {"fits": "no", "why": "budget", "limit": limit}


@pytest.mark.parametrize(
    ("peak", "moved", "answer"),
    [
        (90, [0, 0, 0, 0], "in memory"),
        (90, [9, 0, 0, 0], "in memory"),
        (90, [9, 7, 0, 0], "in memory, but for 2 of 4"),
        (90, [0, 7, 0, 0, 0, 0], "in memory, but for 1 of 6"),
        (90, [9, 0, 0, 0, 7, 0], "in memory, but for 2 of 6"),
        (90, [9, 7, 0, 1], "swapped"),
        (90, [9, 7, 1, 0], "swapped"),
        (110, [9, 7, 0, 0], "swapped"),  # there is no room for all
        (110, [9, 0, 0, 0], "swapped"),  # nor was there in the first
    ],
)
def test_some_steps_may_move_what_fits(tmp_path, peak, moved, answer):
    options = arguments.parse([__file__])
    found = planner.Planner(options, runs.Runs(options, tmp_path))
    found.peak, found.op_bytes, found.oversubscription = peak, 10, 4.0
    found.steps = [step_of(10, 100) | {"peak_bytes": peak} for _ in moved]
    each = [
        step_of(10, 100)
        | {"bytes_in": count, "bytes_out": 0, "number": number}
        | {"stall_ns": 0, "bound_ns": 0, "host_bytes": 0}
        for number, count in enumerate(moved)
    ]
    point = point_of(100, 100) | {"each": each, "peak_host_bytes": 0}
    got = found.answer_of("t4", 100, 100, point | {"settled": True})
    said = got["fits"]
    if "moved" in got:
        said += f", but for {got['moved']['steps']} of {got['moved']['of']}"
        assert got["moved"]["bytes"] == sum(moved)
    assert said == answer
