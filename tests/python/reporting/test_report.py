"""The page of `torch_chameleon.report`: exact numbers, and safe HTML."""

import dataclasses
import os
import stat

import pytest
import torch
import torch.utils.checkpoint
import torch_chameleon
from page_checker import check_page
from support import MIB
from torch import nn
from torch_chameleon import _C
from torch_chameleon import _units as text_of_plan
from torch_chameleon._changes import lives
from torch_chameleon._replace_file import write_private
from torch_chameleon._report import (
    advice,
    figures,
    page,
    residency,
    svg,
)
from torch_chameleon._report import (
    text as text_of,
)
from torch_chameleon._report.figures import Budget, Cost, Figures
from torch_chameleon._report.recording import Mark, Recording, latest
from torch_chameleon._report.residency import Span

NASTY = "<img src=x onerror=alert(1)>&\"'"


def empty_figures(**changes):
    stats = dict.fromkeys(_C.swap_stats(0), 0) | {
        "hbm_budget": 100,
        "host_budget": 1000,
        "steps": 4,
    }
    options = {spec["key"]: spec["default"] for spec in _C.option_specs()}
    made = Figures("1.0", "cpu", options, stats, None)
    for key, value in changes.items():
        setattr(made, key, value)
    if made.step is not None and "step_ns" not in changes:
        made.step_ns = made.step["duration_ns"]
        made.waited_ns = made.step["stall_ns"]
    return made


def step_figures(**changes):
    names = ("duration_ns", "compute_ns", "stall_ns", "bytes_in", "bytes_out")
    names += ("other_ns", "bound_ns", "host_bytes", "ops")
    names += ("forecast_hits", "forecast_misses")
    return dict.fromkeys(names, 0) | {"plan": None} | changes


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


# ---- a run -----------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.narrow(torch.relu(self.wide(x)))


def train(steps):
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(128) for _ in range(4))).to("chameleon")
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, foreach=False)
    for _ in range(steps):
        loss = model(torch.ones(64, 128, device="chameleon")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_chameleon.step()
    return model, optimizer


@pytest.fixture(scope="module")
def a_run():
    with torch_chameleon.config.patch(hbm_budget=2 * MIB):
        torch_chameleon.step()  # so that optimizers' ends do not count
        with torch_chameleon.recording():
            kept = train(4)
        recording = latest()
        gathered = figures.gather(recording)
    yield recording, gathered, kept
    del kept


def test_the_step_that_is_shown(a_run):
    recording, gathered, _ = a_run
    assert len(recording.step_ends) == gathered.recorded_steps == 4
    first, last = recording.last_step()
    ops = [r for r in recording.timeline if r[0] == "compute"]
    timed = [r for r in ops if first < r[6] <= last]
    assert 0 < len(timed) <= gathered.step_ops == last - first
    assert sum(c.calls for c in gathered.by_op) == len(timed)
    for column in ("calls", "compute_ns", "stall_ns"):
        by_op = sum(getattr(cost, column) for cost in gathered.by_op)
        by_module = sum(getattr(cost, column) for cost in gathered.by_module)
        assert by_op == by_module
    inside = [r for r in recording.timeline if r[5] == "wait for room"]
    waited = sum(r[3] - r[2] for r in inside if first < r[6] <= last)
    assert sum(cost.compute_ns for cost in gathered.by_op) == (
        sum(row[3] - row[2] for row in timed) - waited
    )


def test_modules_are_named(a_run):
    _, gathered, _ = a_run
    names = {cost.name for cost in gathered.by_module}
    assert {"0.wide", "3.narrow", "2", "optimizer SGD", ""} <= names
    assert {"0.wide (backward)", "3.narrow (backward)"} <= names
    calls = {cost.name: cost.calls for cost in gathered.by_module}
    assert calls["0.wide"] == calls["3.wide"]


def test_tensors_are_where_the_map_says(a_run):
    recording, gathered, (model, _) = a_run
    named = {tensor.name: tensor for tensor in gathered.tensors}
    for name, _ in model.named_parameters():
        if name.endswith("weight"):
            assert named[name].kind == "kept"
            assert named[f"{name} (momentum_buffer)"].kind == "kept"
    states = {"resident": "hbm", "host": "host", "evicting": "host"}
    at_end = {
        recording.names[block["address"]]: states[block["state"]]
        for block in recording.last_blocks
        if block["address"] in recording.names
    }
    checked = 0
    for tensor in gathered.tensors:
        assert tensor.spans == tuple(
            sorted(tensor.spans, key=lambda s: s.begin)
        )
        for one, other in zip(tensor.spans, tensor.spans[1:], strict=False):
            assert one.end == other.begin
            assert one.state != other.state
        if (
            tensor.name in at_end
            and recording.end_call == recording.step_ends[-1]
        ):
            assert tensor.spans[-1].end == gathered.step_ops
            assert tensor.spans[-1].state == at_end[tensor.name]
            checked += 1
    assert checked >= 16
    moved = sum(tensor.moved_bytes for tensor in gathered.tensors)
    assert moved > 0


def test_the_budget_is_in_the_forecast(a_run):
    _, gathered, _ = a_run
    assert gathered.peak_bytes > gathered.stats["hbm_budget"]
    steps = [row.step_ns for row in gathered.budgets if row.step_ns]
    assert steps
    assert gathered.budgets[-1].step_ns >= 0.99 * gathered.compute_ns


def test_waiting_means_one_thing(a_run):
    """The tile, the advice and both lists are of the recorded step."""
    _, gathered, _ = a_run
    assert gathered.waited_ns > 0
    for rows in (gathered.by_op, gathered.by_module, gathered.by_kind):
        assert sum(cost.stall_ns for cost in rows) == gathered.waited_ns
    text = check_page(page.html_of(gathered, "now"))
    share = f"{gathered.waited_ns / gathered.step_ns:.0%}"
    assert f"{share}of it waiting" in text
    findings = [finding for finding, _ in advice.warnings_of(gathered)]
    for finding in findings:
        assert "waited" not in finding or f" {share} " in finding
    waited = text_of.duration(gathered.waited_ns)
    assert f"Where compute waited for those {waited}" in text


def test_changes_that_would_help_are_said_as_by_plan(a_run, tmp_path):
    recording, gathered, _ = a_run
    # Of a slow step: how long this one took depends on the machine.
    gathered = dataclasses.replace(gathered, step_ns=2, compute_ns=1)
    figures._add_changes(gathered, recording, 0)
    trace = str(tmp_path / "trace")
    _C.export_trace(0, trace)
    peak = max(row[1] for row in recording.memory)
    states = recording.optimizers.states()
    assert states["SGD"] > 0
    after = lives.peaks_after(trace, peak, states["SGD"])
    least = text_of_plan.size(min(after["half"], after["states"]))
    assert 1 <= len(gathered.changes) <= 3
    assert f"a peak of {least}" in gathered.changes[0]
    text = check_page(page.html_of(gathered, "now"))
    assert "Less memory would do with a change" in text


def test_no_change_is_said_of_what_fits():
    torch_chameleon.step()
    recording = Recording()
    recording.start()
    train(4)
    recording.stop()
    gathered = figures.gather(recording)
    assert gathered.fits
    assert gathered.changes == []


def test_another_step_than_the_planners_is_said(a_run):
    recording, gathered, _ = a_run
    assert gathered.notes == []
    shown = empty_figures(step=step_figures(ops=1000))
    figures._add_recording(shown, recording)
    (note,) = shown.notes
    assert "last step has 1,000" in note


def test_the_page(a_run, tmp_path):
    _, gathered, _ = a_run
    path = tmp_path / "run.html"
    path.write_text("old")
    torch_chameleon.report(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert os.listdir(tmp_path) == ["run.html"]
    text = path.read_text()
    assert len(text) < 200_000
    shown = check_page(text)
    for part in ("Memory over time", "What waits, by module", "Settings"):
        assert part in shown
    assert gathered.tensors[0].name in shown or "Moved the most" in shown


def test_the_file_that_was_there_stays_on_failure(tmp_path, monkeypatch):
    path = tmp_path / "run.html"
    path.write_text("old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        torch_chameleon.report(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["run.html"]


def test_what_is_no_file_stays_what_it_is(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_private(tmp_path / "pipe", b"abc")
        assert os.read(reader, 10) == b"abc"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)
    with pytest.raises(IsADirectoryError):
        write_private(tmp_path, b"")


def test_hooks_are_gone_afterwards(a_run):
    from torch.nn.modules import module

    assert not module._global_forward_hooks
    assert not module._global_forward_pre_hooks
    before = len(a_run[0].marks)
    train(1)
    assert len(a_run[0].marks) == before


def test_a_step_that_fits_waits_for_nothing():
    with torch_chameleon.recording():
        kept = train(4)
    shown = figures.gather(latest())
    assert shown.fits
    assert shown.waited_ns == 0
    assert not any(row.stall_ns for row in shown.by_op + shown.by_module)
    budget = torch_chameleon.config.hbm_budget
    enough = [row for row in shown.budgets if row.bytes >= budget]
    assert len(enough) == 2
    assert {(row.bytes_moved, row.rerun_ns) for row in enough} == {(0, 0)}
    text = page.html_of(shown, "now")
    assert "Nothing was moved" in text
    assert "Nothing waited." in text
    assert "more buys nothing" in text
    del kept


def test_a_forward_inside_of_a_backward():
    inner = nn.Linear(8, 8).to("chameleon")
    outer = nn.Linear(8, 8).to("chameleon")
    x = torch.ones(4, 8, device="chameleon", requires_grad=True)
    with torch_chameleon.recording():
        y = torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)
        outer(y).sum().backward()
    where = [mark.where for mark in latest().marks]
    again = len(where) - 1 - where[::-1].index("Linear")
    assert where[again - 1] == "Linear (backward)"
    assert where[again + 1] == "Linear (backward)"


class Wrapper(torch.Tensor):
    """As quantized and distributed parameters are: no storage of its own."""

    @staticmethod
    def __new__(cls, inner, requires_grad=False):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            dtype=inner.dtype,
            device=inner.device,
            requires_grad=requires_grad,
        )

    def __init__(self, inner, requires_grad=False):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args = [each.inner if isinstance(each, cls) else each for each in args]
        found = func(*args, **(kwargs or {}))
        return cls(found) if func is torch.ops.aten.detach.default else found


def test_parameters_without_storage():
    wrapped = nn.Parameter(Wrapper(torch.ones(3, device="chameleon")))
    indices = torch.zeros(1, 1, dtype=torch.int64, device="chameleon")
    sparse = torch.sparse_coo_tensor(
        indices, torch.ones(1, device="chameleon"), (3,)
    )
    recorded = Recording(0)
    for parameter in (wrapped, sparse):
        recorded._name(parameter, "weight")
        assert recorded._name_of(parameter) == "state"
    assert recorded.names == {}


def test_a_recording_that_fails_to_start(monkeypatch):
    from torch.nn.modules import module

    with pytest.raises(ValueError, match="no device chameleon:7"):
        torch_chameleon.recording(7)
    torch.chameleon.init()

    def fail(*arguments):
        raise KeyError("no log")

    monkeypatch.setattr(_C, "start_decision_log", fail)
    with pytest.raises(KeyError, match="no log"), torch_chameleon.recording():
        pass
    monkeypatch.undo()
    assert not module._global_forward_hooks
    with torch_chameleon.recording():
        torch.ones(3, device="chameleon") + 1
    assert latest().end_call > latest().begin_call


def test_one_recording_at_a_time():
    with (
        torch_chameleon.recording(),
        pytest.raises(RuntimeError, match="under way"),
        torch_chameleon.recording(),
    ):
        pass


def test_a_step_has_the_same_bits_while_it_is_recorded():
    def weights(records):
        if not records:
            return [p.cpu() for p in train(2)[0].parameters()]
        with torch_chameleon.recording():
            return [p.cpu() for p in train(2)[0].parameters()]

    for a, b in zip(weights(False), weights(True), strict=True):
        assert torch.equal(a, b)


_SIMULATED = """
import torch, torch_chameleon
from torch import nn
from torch_chameleon._report import figures, page
from torch_chameleon._report.recording import latest

torch_chameleon.config.physical_device = "simulated"
torch_chameleon.config.hbm_budget = "1GiB"
with torch.device("chameleon"):
    model = nn.Module()
    model.blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))
        for _ in range(8)
    )
optimizer = torch.optim.AdamW(model.parameters(), fused=True)

def steps(count):
    for _ in range(count):
        x = torch.ones(8192, 1024, device="chameleon")
        for block in model.blocks:
            x = x + block(x)
        x.sum().backward()
        optimizer.step()
        optimizer.zero_grad()

steps(3)
with torch_chameleon.recording():
    steps(3)
shown = figures.gather(latest())
for costs in (shown.by_op, shown.by_module, shown.by_kind):
    compute = sum(cost.compute_ns for cost in costs)
    stall = sum(cost.stall_ns + cost.rerun_ns for cost in costs)
    print(shown.step_ns, compute, stall)
    assert stall > 0
    assert abs(compute + stall - shown.step_ns) < 0.03 * shown.step_ns
    assert abs(compute - shown.compute_ns) < 0.03 * compute
assert 0 < sum(shown.link_in) / len(shown.link_in) <= 1.001
assert max(shown.link_in + shown.link_out) <= 1.001
names = {cost.name for cost in shown.by_module}
assert {"0", "2 (backward)", "optimizer AdamW"} <= names, names
assert len(page.html_of(shown, "now")) < 200_000
"""


@pytest.mark.slow
def test_a_simulated_step_adds_up(fresh):
    fresh(_SIMULATED)
