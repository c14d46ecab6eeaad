"""torch.profiler shows the device: lanes, names, times on one clock."""

import collections
import contextlib
import itertools
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch_chameleon
from support import MIB, dropping, evicting
from torch.profiler import ProfilerActivity, profile, record_function
from torch_chameleon import _testing

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
LANES = ["compute", "in", "out", "re-runs", "collectives", "stalls"]
LANES += ["decisions"]


def work():
    x = torch.ones(256, 256, device="chameleon")
    with evicting("all"):
        for _ in range(3):
            x = x @ x
    torch.chameleon.synchronize()
    return x


def trace_of(profiler, folder):
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    with open(path) as file:
        return json.load(file)


def device_events(trace):
    return [
        event
        for event in trace["traceEvents"]
        if event.get("ph") == "X" and event.get("pid") == 0
    ]


def check_chrome_format(trace):
    """The trace event format, as Perfetto reads it."""
    assert isinstance(trace["traceEvents"], list)
    for event in trace["traceEvents"]:
        assert isinstance(event["ph"], str)
        assert len(event["ph"]) == 1
        assert isinstance(event.get("name", ""), str)
        if event["ph"] == "M":
            assert event["name"] in (
                *("process_name", "process_labels", "process_sort_index"),
                *("thread_name", "thread_sort_index"),
            )
            assert isinstance(event["args"], dict)
            continue
        assert isinstance(event["ts"], (int, float))
        assert {"pid", "tid"} <= set(event)
        if event["ph"] == "X":
            assert event["dur"] >= 0
        if event["ph"] in "sft":
            assert "id" in event


def test_lanes_in_the_chrome_trace(tmp_path):
    work()
    with profile(activities=BOTH) as profiler:
        begin_s = time.time()
        work()
        end_s = time.time()
    trace = trace_of(profiler, tmp_path)
    check_chrome_format(trace)
    named = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    }
    assert [named[0, tid] for tid in range(len(LANES))] == LANES
    events = device_events(trace)
    kinds = {(LANES[event["tid"]], event["cat"]) for event in events}
    assert {
        *(("compute", "kernel"), ("in", "gpu_memcpy"), ("out", "gpu_memcpy")),
        *(("stalls", "gpu_user_annotation"),),
        *(("decisions", "gpu_user_annotation"),),
    } <= kinds
    products = [event for event in events if event["name"] == "aten::mm"]
    assert len(products) == 3
    names = {event["name"] for event in events}
    assert {"copy in", "copy out", "stall before aten::mm"} <= names
    assert any(name.endswith("before aten::mm") for name in names)
    # On the clock of the host's events.
    base_us = trace.get("baseTimeNanoseconds", 0) / 1e3
    for event in events:
        assert begin_s <= (event["ts"] + base_us) / 1e6 + 1e-3
        assert (event["ts"] + base_us + event["dur"]) / 1e6 <= end_s + 1e-3


def test_device_times_belong_to_ops():
    with profile(activities=BOTH) as profiler, record_function("mine"):
        work()
    rows = {row.key: row for row in profiler.key_averages()}
    assert rows["aten::mm"].count == 3
    assert rows["aten::mm"].device_time_total > 0
    table = profiler.key_averages().table(sort_by="self_device_time_total")
    assert "aten::mm" in table
    assert "CHAMELEON" in table.upper()


def phases(profiler):
    """The pager's phases: how many of each."""
    return {
        row.key.removeprefix("chameleon::"): row.count
        for row in profiler.key_averages()
        if row.key.startswith("chameleon::")
    }


def test_phases_are_ranges_of_the_ops_thread(tmp_path):
    work()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        work()
    # Each product finds its operand evicted; what was there before, once.
    counts = phases(profiler)
    assert counts["fetch"] == 3
    assert counts["evict"] >= 3
    events = [
        event
        for event in trace_of(profiler, tmp_path)["traceEvents"]
        if event.get("ph") == "X"
    ]
    products = [event for event in events if event["name"] == "aten::mm"]
    fetches = [event for event in events if event["name"] == "chameleon::fetch"]
    assert {event["cat"] for event in fetches} == {"user_annotation"}
    for product, fetch in zip(products, fetches, strict=True):
        assert product["tid"] == fetch["tid"]
        assert product["ts"] <= fetch["ts"]
        assert fetch["ts"] + fetch["dur"] <= product["ts"] + product["dur"]


def test_phases_of_a_rerun_and_of_a_read():
    with dropping("record"):
        x = torch.ones(1 << 16, device="chameleon")
        y = x + 1
        assert _testing.drop(y)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            z = y + 1
    assert phases(profiler) == {"run again": 1}
    assert z.sum().item() == 3 << 16


def test_no_phases_where_all_is_there():
    # Where a known round begins the plan is asked: an op that no other test
    # repeats.
    x = torch.ones(64, 64, device="chameleon")
    y = torch.hypot(x, x)  # the first of its size commits memory
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(4):
            y = torch.hypot(x, x)
    assert phases(profiler) == {}
    assert y[0, 0] == torch.hypot(torch.ones(()), torch.ones(()))


def test_phases_where_ops_are_put_off():
    """Events at both ends of a range finish no work that was deferred."""

    def train(profiled):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(256, 256) for _ in range(8)]
        model = torch.nn.Sequential(*layers).to("chameleon")
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        with torch_chameleon.config.patch(hbm_budget=4 * MIB):
            with profiled:
                for _ in range(3):
                    x = torch.rand(64, 256, device="chameleon")
                    model(x).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
            return [parameter.cpu() for parameter in model.parameters()]

    plain = train(contextlib.nullcontext())
    profiler = torch.autograd.profiler.profile(use_device="chameleon")
    assert all(map(torch.equal, plain, train(profiler)))
    assert {"evict", "fetch"} <= phases(profiler).keys()


def test_phases_of_several_threads(tmp_path):
    """Ranges begin under the pager's lock: no observer may need the GIL."""
    everything = torch._C._profiler._ExperimentalConfig(
        profile_all_threads=True
    )
    observer = torch.profiler.ExecutionTraceObserver()
    observer.register_callback(str(tmp_path / "ops.json"))
    with (
        profile(
            activities=BOTH,
            experimental_config=everything,
            execution_trace_observer=observer,
            with_stack=True,
        ) as profiler,
        evicting("random"),
        ThreadPoolExecutor(4) as threads,
    ):
        results = list(threads.map(lambda _: work_unevicted(), range(16)))
    observer.unregister_callback()
    assert all(torch.equal(results[0], result) for result in results)
    assert phases(profiler)["fetch"] > 0
    no_overlaps(device_events(trace_of(profiler, tmp_path)))


def work_unevicted():
    x = torch.ones(64, 64, device="chameleon")
    for _ in range(20):
        x = x @ x / 64
    return x.cpu()


def no_overlaps(events):
    """Perfetto reads times as doubles, and drops what overlaps in a row."""
    rows = collections.defaultdict(list)
    for event in events:
        begin_ns = round(event["ts"] * 1e3)
        rows[event["pid"], event["tid"]].append(
            (begin_ns, begin_ns + round(event["dur"] * 1e3))
        )
    for row in rows.values():
        row.sort()
        for one, other in itertools.pairwise(row):
            # Decisions of one moment are drawn as one on the other.
            assert one[1] <= other[0] or one == other


def test_nothing_overlaps_in_a_row(tmp_path):
    torch_chameleon.profiler.record_timeline()
    try:
        with profile(activities=BOTH) as profiler, evicting("random"):
            for _ in range(50):
                work_unevicted()
    finally:
        torch_chameleon.profiler.record_timeline(False)
    events = device_events(trace_of(profiler, tmp_path))
    assert len(events) > 1000
    no_overlaps(events)
    path = tmp_path / "own.json"
    torch_chameleon.profiler.export_timeline(path)
    own = json.loads(path.read_text())["traceEvents"]
    no_overlaps(event for event in own if event["ph"] == "X")


def test_a_profiler_of_the_host_alone_records_no_device(tmp_path):
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        work()
    assert device_events(trace_of(profiler, tmp_path)) == []


def test_a_timeline_goes_on_after_a_profiler(tmp_path):
    torch_chameleon.profiler.record_timeline()
    try:
        x = torch.ones(8, device="chameleon").exp()
        with profile(activities=BOTH) as profiler:
            y = x.sin()
        z = x.cos()
    finally:
        torch_chameleon.profiler.record_timeline(False)
    names = {
        event["name"] for event in device_events(trace_of(profiler, tmp_path))
    }
    assert "aten::sin" in names
    assert "aten::exp" not in names
    path = tmp_path / "own.json"
    torch_chameleon.profiler.export_timeline(path)
    own = json.loads(path.read_text())
    check_chrome_format(own)
    assert {"aten::exp", "aten::sin", "aten::cos"} <= {
        event["name"] for event in own["traceEvents"]
    }
    del y, z


def test_profilers_one_after_the_other(tmp_path):
    for _ in range(2):
        with profile(activities=BOTH) as profiler:
            work()
        products = [
            event
            for event in device_events(trace_of(profiler, tmp_path))
            if event["name"] == "aten::mm"
        ]
        assert len(products) == 3


def test_a_schedule(tmp_path):
    traces = []
    with profile(
        activities=BOTH,
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=1),
        on_trace_ready=lambda p: traces.append(trace_of(p, tmp_path)),
    ) as profiler:
        for _ in range(3):
            work()
            profiler.step()
    (trace,) = traces
    products = [e for e in device_events(trace) if e["name"] == "aten::mm"]
    assert len(products) == 3


def test_backward_is_attributed(tmp_path):
    model = torch.nn.Linear(32, 32).to("chameleon")
    x = torch.ones(4, 32, device="chameleon")
    with profile(activities=BOTH) as profiler:
        model(x).sum().backward()
        torch.chameleon.synchronize()
    rows = {row.key: row for row in profiler.key_averages()}
    assert rows["aten::addmm"].device_time_total > 0
    assert rows["aten::mm"].device_time_total > 0


def test_autograd_profiler():
    with torch.autograd.profiler.profile(use_device="chameleon") as profiler:
        work()
    rows = {row.key: row for row in profiler.key_averages()}
    assert rows["aten::mm"].device_time_total > 0


def test_the_bits_are_the_same():
    plain = work().cpu()
    with profile(activities=BOTH):
        profiled = work().cpu()
    assert torch.equal(plain, profiled)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("activity", "use"), [("CPU", "None"), ("PrivateUse1", "torch.profiler")]
)
def test_starting_one_is_a_use_only_if_it_shows_the_device(
    fresh, activity, use
):
    printed = fresh(
        "import torch, torch_chameleon\n"
        "from torch.profiler import ProfilerActivity, profile\n"
        f"with profile(activities=[ProfilerActivity.{activity}]):\n"
        "    torch.ones(4) + 1\n"
        "print(torch_chameleon._C.first_use())\n"
    )
    assert printed == use


@pytest.mark.slow
def test_many_steps(tmp_path):
    x = torch.ones(MIB, device="chameleon")
    with profile(activities=BOTH) as profiler:
        for _ in range(2000):
            x = x + 1
    events = device_events(trace_of(profiler, tmp_path))
    assert len([e for e in events if e["name"] == "aten::add.Tensor"]) == 2000
