"""The page of `torch_chameleon.report`: exact numbers, and safe HTML."""

import re

import pytest
from page_checker import check_page
from report_figures import empty_figures, step_figures
from torch_chameleon._report import (
    advice,
    figures,
    page,
    residency,
    svg,
)
from torch_chameleon._report.figures import Budget, Cost
from torch_chameleon._report.recording import Mark, Recording
from torch_chameleon._report.residency import Span

NASTY = "<img src=x onerror=alert(1)>&\"'"


# ---- numbers ---------------------------------------------------------------


def test_costs_are_sums():
    rows = [
        ("a", ("stalls", "mm", 0, 5, 0, None, 1)),
        ("a", ("compute", "mm", 5, 8, 0, None, 1)),
        ("b", ("compute", "add", 8, 10, 0, None, 2)),
        ("a", ("compute", "mm", 10, 14, 0, None, 3)),
        ("a", ("decisions", "mm", 10, 10, 64, "fetch", 3)),
    ]
    assert figures.costs(rows) == [Cost("a", 2, 7, 5), Cost("b", 1, 2, 0)]
    inside = ("stalls", "mm", 10, 13, 0, "wait for room", 3)
    assert figures.costs([*rows, ("a", inside)])[0] == Cost("a", 2, 4, 8)


def test_an_op_that_runs_again_is_no_waiting():
    stall = ("stalls", "mm", 10, 30, 0, None, 1)
    other = ("stalls", "mm", 50, 60, 0, None, 2)
    timeline = [
        *(("re-runs", "add", 0, 12, 0, None, 1), stall),
        *(("re-runs", "add", 20, 25, 0, None, 1), other),
        *(("re-runs", "add", 55, 70, 0, None, 2),),
    ]
    rows = figures.apart_from_reruns(timeline)
    (cost,) = figures.costs(("mm", row) for row in rows)
    assert cost == Cost("mm", 0, 0, 13 + 5, 2 + 5 + 5)
    assert [row for row in rows if row[0] == "re-runs"] == [
        *(timeline[0], timeline[2], timeline[4])
    ]


def test_modules_of_a_list_are_of_a_kind():
    assert figures.kind_of("blocks.3.up (backward)") == "blocks.*.up (backward)"
    assert figures.kind_of("0") == "*"
    assert figures.kind_of("0.wide") == "*.wide"
    assert figures.kind_of("conv2d.norm1") == "conv2d.norm1"
    assert figures.kind_of("a.12") == "a.*"
    assert figures.kind_of("a.12 (backward)") == "a.* (backward)"


def test_link_use_is_exact():
    # 240 parts of 10 ns; 1e9 bytes/s carry 10 bytes in each.
    shares = figures.link_use([(0, 20, 20), (5, 15, 5)], 0, 2400, 1e9)
    assert shares[:3] == pytest.approx([1.25, 1.25, 0])
    shares = figures.link_use([(-10, 10, 20)], 0, 2400, 1e9)
    assert sum(shares) == pytest.approx(1.0)
    assert figures.link_use([(2390, 2390, 7)], 0, 2400, 1e9)[-1] > 0
    assert figures.link_use([], 0, 0, 1e9) == []


def test_budgets_to_ask():
    asked = figures.budgets_to_ask(1000, 4000, 300)
    assert {1000, 1250, 4000} <= set(asked)
    assert asked == sorted(asked)
    assert min(asked) >= 500
    big = 8 * figures.GIB
    assert figures.next_piece(big) == figures.GIB


def test_less_memory_is_never_faster():
    def step(duration, compute, moved):
        return {
            **{"duration_ns": duration, "compute_ns": compute},
            **{"bytes_in": moved, "bytes_out": moved},
        }

    steps = [
        None,
        step(90.0, 70.0, 5),
        step(95.0, 60.0, 3),
        step(50.0, 50.0, 0),
    ]
    rows = figures.budget_rows([10, 20, 30, 40], steps, 50.0)
    assert rows == [
        Budget(10, None, 0, 0),
        Budget(20, 95, 10, 20),
        Budget(30, 95, 6, 10),
        Budget(40, 50, 0, 0),
    ]


def recorded(**changes):
    recording = Recording()
    recording.step_ends = [10, 14]
    recording.end_call = 14
    recording.decisions = []
    for key, value in changes.items():
        setattr(recording, key, value)
    return recording


def test_a_mark_holds_until_the_next():
    recording = recorded(
        marks=[Mark(0, ""), Mark(3, "a"), Mark(3, "a.b"), Mark(5, "a")]
    )
    assert [recording.where(call) for call in (1, 3, 4, 5, 6)] == [
        *("", "", "a.b", "a.b", "a")
    ]


def test_residency_op_by_op():
    def event(kind, identity, call):
        return {
            **{"event": kind, "identity": identity, "address": identity},
            **{"bytes": 100, "rounded_bytes": 512, "time_us": 0},
            **{"call": call, "frames": []},
        }

    recording = recorded(
        blocks=[
            {
                **{"identity": 1, "address": 1, "bytes": 1000},
                **{"rounded_bytes": 1024, "state": "host", "frames": []},
            }
        ],
        names={1: "weight"},
        events=[event("alloc", 2, 11), event("free", 2, 13)],
        decisions=[
            (9, "fetch", 1, 0, 1000),  # before the step
            (11, "adopt", 2, 0, 100),
            (12, "victim", 1, 0, 1000),
            (13, "fault", 1, 0, 1000),
            (13, "move", 1, 0, 1000),
        ],
        timeline=[("compute", "aten::mm", 0, 1, 0, None, 11)],
    )
    recording.last_blocks = recording.blocks
    tensors, left_out = residency.residency(recording)
    assert left_out == 0
    weight, made = tensors
    assert (weight.name, weight.kind, weight.moved_bytes) == (
        *("weight", "kept", 2000),
    )
    assert weight.spans == (
        *(Span(0, 2, "hbm"), Span(2, 3, "host"), Span(3, 4, "hbm")),
    )
    assert (made.name, made.kind) == ("aten::mm", "made")
    assert made.spans == (Span(1, 3, "hbm"),)


def test_as_many_of_either_kind_are_shown(monkeypatch):
    monkeypatch.setattr(residency, "_TENSORS", 6)

    def lives(kind, count):
        made = [residency._Life(kind, kind, 9, "hbm") for _ in range(count)]
        for life in made:
            life.close(4)
        return made

    for kept, made in ((9, 9), (9, 1), (1, 9), (2, 2)):
        rows, left_out = residency._largest(
            lives("kept", kept) + lives("made", made)
        )
        kinds = [row.kind for row in rows]
        assert left_out == kept + made - len(rows)
        assert len(rows) == min(6, kept + made)
        assert kinds.count("made") >= min(made, 3)
        assert kinds.count("kept") >= min(kept, 3)


def test_advice_follows_the_numbers():
    assert advice.warnings_of(empty_figures()) == []
    stalled = empty_figures(
        step=step_figures(
            duration_ns=100, stall_ns=50, bytes_in=9, bound_ns=95, ops=10
        ),
        link_in_bytes_per_s=1e8,  # 90 ns for those nine
        peak_bytes=400,
        budgets=[Budget(100, 90, 9, 0), Budget(125, 60, 5, 0)],
    )
    ((finding, todo),) = advice.warnings_of(stalled)
    assert "50% of the last step" in finding
    assert "only fewer bytes help" in todo
    assert advice.gain_of_more(stalled) == (25, 30)
    assert "25 B more of hbm_budget" in todo
    stalled.link_in_bytes_per_s = 1e9  # what bounds the step is compute
    ((_, todo),) = advice.warnings_of(stalled)
    assert "With better timing the step takes 0.00 ms" in todo
    stalled.budgets[1] = Budget(125, 90, 5, 0)
    ((_, todo),) = advice.warnings_of(stalled)
    assert "more of hbm_budget" not in todo

    unlearned = empty_figures(
        step=step_figures(
            duration_ns=100, bytes_in=1, ops=10, forecast_misses=4
        )
    )
    ((finding, _),) = advice.warnings_of(unlearned)
    assert finding.startswith("4 of 10 ops")

    fits = empty_figures(step=step_figures(duration_ns=100, stall_ns=50, ops=1))
    ((finding, _),) = advice.warnings_of(fits)
    assert finding.endswith("everything fits.")
    fits.stats["rerun_ops"] = 1  # what was dropped was not moved
    assert not fits.fits

    full = empty_figures()
    full.stats |= {"peak_logical_bytes": 395, "peak_host_bytes": 950}
    findings = [finding for finding, _ in advice.warnings_of(full)]
    assert len(findings) == 2


def test_thinning_keeps_peaks():
    points = [(i / 5000, float(i == 1234)) for i in range(5000)]
    kept = svg.thinned(points)
    assert len(kept) <= 600
    assert max(kept, key=lambda point: point[1]) == points[1234]


# ---- HTML ------------------------------------------------------------------


def test_what_commits_keep_and_cost_is_shown():
    step = step_figures(
        mirror_bytes_out=3 << 20, plan={"modelled_mirror_ns": 2_000_000}
    )
    text = check_page(page.html_of(empty_figures(step=step), "now"))
    assert re.search(r"3\.?0* MiB\s*out for commits, a step", text)
    assert re.search(r"2\.?0* ms\s*that costs, by the plan", text)
    text = page.html_of(empty_figures(step=step_figures()), "now")
    assert "commits" not in text


def test_everything_shown_is_escaped():
    shown = empty_figures(
        physical_device=NASTY,
        by_op=[Cost(NASTY, 1, 2, 3)],
        by_module=[Cost(NASTY, 1, 2, 3), Cost("", 1, 1, 1)],
        by_kind=[Cost(NASTY, 2, 3, 4)],
        tensors=[residency.Tensor(NASTY, "made", 5, 5, (Span(0, 1, "hbm"),))],
        notes=[NASTY],
        step_ops=1,
        step=step_figures(duration_ns=1),
    )
    shown.options["simulated_gpu"] = NASTY
    text = check_page(page.html_of(shown, NASTY))
    assert text.count(NASTY) >= 6


def test_without_anything():
    text = check_page(page.html_of(empty_figures(notes=["nothing"]), "now"))
    assert "What waits" not in text
