"""The report of a run: what is recorded of it, and what the page says."""

import dataclasses
import os
import stat

import pytest
import torch
import torch.utils.checkpoint
import torch_chameleon
from page_checker import check_page
from report_figures import empty_figures, step_figures
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
)
from torch_chameleon._report import (
    text as text_of,
)
from torch_chameleon._report.recording import Recording, latest


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
