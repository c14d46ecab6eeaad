"""torch_chameleon.profiler and step(): figures, traces and timelines."""

import json

import pytest
import torch
import torch_chameleon
from support import moved
from torch_chameleon import _C, profiler


def program():
    """Four weights, and a step of twelve ops on them, which is known."""
    torch.manual_seed(0)
    weights = [torch.randn(64, 64, device="chameleon") for _ in range(4)]

    def step():
        x = weights[0]
        for weight in weights:
            x = torch.tanh(x @ weight)
        for weight in weights:
            weight.add_(x)
        torch_chameleon.step()

    torch_chameleon.step()
    for _ in range(4):
        step()
    return step, weights


def test_figures_of_a_step():
    step, _ = program()
    step()
    figures = profiler.last_step()
    assert figures["ops"] == 12
    assert figures["forecast_hits"] == 12
    assert figures["forecast_misses"] == 0
    assert figures["bytes_in"] == figures["bytes_out"] == 0
    assert figures["stall_ns"] == 0
    assert figures["compute_ns"] > 0
    assert figures["bound_ns"] == figures["compute_ns"]
    assert 0 < figures["duration_ns"] < 10**9
    assert list(figures) == list(profiler.StepFigures.__annotations__)
    check_parts(figures)


def check_parts(figures):
    parts = [figures[f"{name}_ns"] for name in ("compute", "stall", "other")]
    assert min(parts) >= 0
    assert figures["duration_ns"] == sum(parts)


def test_bytes_of_a_step():
    step, weights = program()
    with torch_chameleon.config.patch(policy="lru"):
        step()
        torch.chameleon.synchronize()
        for weight in weights:
            _C.evict(weight)
        step()
    figures = profiler.last_step()
    size = 64 * 64 * 4
    assert figures["bytes_out"] == 4 * size
    assert figures["bytes_in"] == 4 * size
    assert figures["plan"] is None
    check_parts(figures)


def test_counters():
    step, _ = program()
    counted = moved(step)
    assert counted["steps"] == 1
    assert counted["forecast_hits"] == 12
    assert counted["forecast_misses"] == 0
    torch_chameleon.reset_swap_stats()
    stats = torch_chameleon.swap_stats()
    assert stats["steps"] == stats["forecast_hits"] == 0
    step()
    stats = torch_chameleon.swap_stats()
    assert (stats["steps"], stats["forecast_hits"]) == (1, 12)
    assert stats["ops"] == 12


def test_what_is_matched():
    step, weights = program()
    step()
    x = weights[0] @ weights[0]
    state = profiler.state()
    assert state["matching"]["state"] == "following"
    assert state["matching"]["position"] == 1
    assert state["matching"]["length"] == 12
    assert state["matching"]["marked_steps"]
    history = state["history"]
    assert 0 < history["sequences"] <= 64
    assert history["ops"] >= 12
    assert 0 < history["bytes"] <= history["limit_bytes"] + 2**20
    del x
    torch_chameleon.step()


def test_the_last_divergence():
    step, weights = program()
    step()
    before = profiler.state()["divergences"]
    x = weights[0] @ weights[0]
    y = torch.sigmoid(x)  # tanh was expected
    state = profiler.state()
    assert state["divergences"] == before + 1
    last = state["last_divergence"]
    assert last["kind"] == "another op"
    assert last["position"] == 1
    assert last["expected"] == "aten::tanh"
    assert last["seen"] == "aten::sigmoid"
    del x, y
    torch_chameleon.step()


def read_trace(path):
    header, *rest = [json.loads(line) for line in path.read_text().splitlines()]
    return header, rest[:-1], rest[-1]


def test_trace(tmp_path):
    step, _ = program()
    step()
    path = tmp_path / "step.jsonl"
    profiler.export_trace(path)
    header, ops, end = read_trace(path)
    assert header["trace"] == 1
    assert header["name"] == _C.physical_device()
    assert header["hbm_budget"] == torch_chameleon.config.hbm_budget
    assert header["bw_in"] > 0
    assert end == {"step": 1}
    assert [op["op"] for op in ops] == (
        ["aten::mm", "aten::tanh"] * 4 + ["aten::add_.Tensor"] * 4
    )
    size = 64 * 64 * 4
    alive = {}
    for op in ops:
        assert op["dur_ns"] >= 0
        for number, count in op["in"] + op["out"]:
            assert count == size
            alive[number] = op["op"]
        written = {number for number, _ in op["out"]}
        if op["op"] == "aten::add_.Tensor":
            written = {op["in"][0][0], op["in"][1][0]} & set(op["write"])
        assert set(op["write"]) == written
    assert len(alive) == 4 + 8  # weights and results
    freed = [number for op in ops for number in op["free"]]
    assert len(freed) == len(set(freed)) == 8


def test_trace_says_what_is_overwritten(tmp_path):
    a = torch.ones(256, device="chameleon")
    out = torch.empty(256, device="chameleon")
    torch_chameleon.step()
    for _ in range(3):
        torch.add(a, a, out=out)
        out[:128].zero_()
        a.copy_(out)
        torch_chameleon.step()
    path = tmp_path / "step.jsonl"
    profiler.export_trace(path)
    _, ops, _ = read_trace(path)
    assert [len(op.get("over", [])) for op in ops] == [1, 0, 1]
    for op in ops:
        assert set(op.get("over", [])) <= set(op["write"])


def test_timeline(tmp_path):
    step, weights = program()
    profiler.record_timeline()
    try:
        with torch_chameleon.config.patch(policy="lru"):
            for weight in weights:
                _C.evict(weight)
            step()
    finally:
        profiler.record_timeline(False)
    step()
    path = tmp_path / "timeline.json"
    profiler.export_timeline(path)
    events = json.loads(path.read_text())["traceEvents"]
    lanes = {
        event["tid"]: event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    assert list(lanes.values()) == [
        "compute",
        "in",
        "out",
        "re-runs",
        "collectives",
        "stalls",
        "decisions",
    ]
    by_lane = {name: [] for name in lanes.values()}
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0 <= event["ts"]
            by_lane[lanes[event["tid"]]].append(event)
    assert [event["name"] for event in by_lane["compute"]] == (
        ["aten::mm", "aten::tanh"] * 4 + ["aten::add_.Tensor"] * 4
    )
    size = 64 * 64 * 4
    assert sum(e["args"]["bytes"] for e in by_lane["out"]) == 4 * size
    assert sum(e["args"]["bytes"] for e in by_lane["in"]) == 4 * size
    fetches = by_lane["decisions"]
    assert {event["name"] for event in fetches} == {"fetch"}
    assert {event["args"]["before"] for event in fetches} == {"aten::mm"}


def test_before_anything_ran(fresh, tmp_path):
    printed = fresh(
        "import torch_chameleon as tc\n"
        "from torch_chameleon import profiler\n"
        "tc.step()\n"
        "calls = [profiler.last_step,\n"
        f"    lambda: profiler.export_trace({str(tmp_path / 'a')!r}),\n"
        f"    lambda: profiler.export_timeline({str(tmp_path / 'b')!r})]\n"
        "for call in calls:\n"
        "    try: call()\n"
        "    except RuntimeError as error: print(error)\n"
        "print(profiler.state()['matching']['state'])\n"
        "print(profiler.state()['last_divergence'])\n"
        "print(tc._C.first_use())\n"
    ).splitlines()
    assert len(printed) == 6
    assert "no step has ended yet" in printed[0]
    assert "no step has ended yet" in printed[1]
    assert "record_timeline()" in printed[2]
    assert printed[3:] == ["unknown", "None", "None"]


def test_a_file_that_cannot_be_written():
    step, _ = program()
    step()
    with pytest.raises(ValueError, match="cannot write ./nowhere/step.jsonl"):
        profiler.export_trace("/nowhere/step.jsonl")


def test_simulated_steps_are_exact(fresh):
    printed = fresh(
        "import json, torch, torch_chameleon\n"
        "from torch_chameleon import _C, config, profiler, swap_stats\n"
        "config.physical_device = 'simulated'\n"
        "config.simulated_gpu = 'h100'\n"
        "config.policy = 'lru'\n"
        "x = torch.empty(1 << 22, device='chameleon')\n"  # 16 MiB
        "y = torch.empty(1 << 22, device='chameleon')\n"
        "torch_chameleon.step()\n"
        "def run(evict):\n"
        "    torch_chameleon.step()\n"
        "    x.add_(y)\n"
        "    if evict: _C.evict(x)\n"
        "    x.add_(y)\n"
        "    torch_chameleon.step()\n"
        "    return dict(profiler.last_step())\n"
        "run(False)\n"
        "print(json.dumps([run(False), run(True), run(False)]))\n"
    )
    plain, swapped, again = json.loads(printed)
    for figures in (plain, swapped, again):
        check_parts(figures)
        assert figures["other_ns"] <= 1  # of rounding
    assert plain == again
    assert plain["ops"] == swapped["ops"] == 2
    assert plain["stall_ns"] == 0
    assert plain["duration_ns"] == plain["compute_ns"] == plain["bound_ns"]
    assert plain["compute_ns"] == pytest.approx(swapped["compute_ns"], abs=1)
    assert swapped["bytes_in"] == swapped["bytes_out"] == 1 << 24
    assert swapped["compute_ns"] < swapped["bound_ns"] <= swapped["stall_ns"]
