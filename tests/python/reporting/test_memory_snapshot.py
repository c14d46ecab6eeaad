"""Snapshots have torch.cuda's schema, and PyTorch's own tools read them."""

import gc
import json
import os
import pickle
import pickletools
import re
import stat
import threading

import pytest
import torch
from support import MIB, evicting
from torch.cuda import _memory_viz
from torch_chameleon import _C

memory = torch.chameleon.memory

# As documented in torch/cuda/memory.py, and what its C++ adds.
SEGMENT = {
    *("address", "total_size", "stream", "segment_type", "allocated_size"),
    *("active_size", "requested_size", "device", "blocks", "frames"),
    *("segment_pool_id", "is_expandable"),
}
BLOCK = {"address", "size", "requested_size", "state", "frames"}
ENTRY = {"action", "size", "stream", "time_us", "frames"}
ENTRY |= {"compile_context", "user_metadata"}
VIEWER_READS = {
    *("APPENDS", "BINGET", "BININT", "BININT1", "BININT2", "EMPTY_DICT"),
    *("EMPTY_LIST", "FRAME", "LONG1", "LONG_BINGET", "MARK", "MEMOIZE"),
    *("PROTO", "SETITEMS", "SHORT_BINUNICODE", "STOP", "TUPLE2", "APPEND"),
    *("NEWFALSE", "BINUNICODE", "EMPTY_TUPLE", "NEWTRUE", "NONE", "BINFLOAT"),
    *("TUPLE", "TUPLE1", "TUPLE3"),
}


@pytest.fixture(autouse=True)
def off_afterwards():
    yield
    memory._record_memory_history(None)
    memory._record_memory_history("state", context=None, clear_history=True)
    memory._record_memory_history(None)


def make_and_lose():
    kept = torch.ones(1000, device="chameleon")
    lost = kept + 1
    del lost
    return kept


def check_schema(snapshot):
    assert set(snapshot) == {
        *("segments", "device_traces", "allocator_settings"),
        "external_annotations",
    }
    for segment in snapshot["segments"]:
        assert set(segment) == SEGMENT
        at = segment["address"]
        for block in segment["blocks"]:
            assert set(block) - {"residency"} == BLOCK
            assert block["address"] == at  # without a hole
            at += block["size"]
            assert block["requested_size"] <= block["size"]
            assert block["state"] in ("active_allocated", "inactive")
        assert at == segment["address"] + segment["total_size"]
    begins = [segment["address"] for segment in snapshot["segments"]]
    assert len(snapshot["device_traces"]) == torch.chameleon.device_count()
    for trace in snapshot["device_traces"]:
        for entry in trace:
            where = "device_free" if entry["action"] == "oom" else "addr"
            assert set(entry) == ENTRY | {where}
            if where == "addr":
                assert entry["addr"] >= min(begins)
        assert trace == sorted(trace, key=lambda entry: entry["time_us"])


def test_live_tensors_and_events_exactly():
    memory._record_memory_history(clear_history=True)
    kept = make_and_lose()
    snapshot = memory._snapshot()
    check_schema(snapshot)
    trace = snapshot["device_traces"][0]
    assert [entry["action"] for entry in trace] == [
        *("alloc", "alloc", "free_requested", "free_completed")
    ]
    assert {entry["size"] for entry in trace} == {4096}
    assert trace[0]["addr"] == kept.data_ptr()
    assert trace[1]["addr"] == trace[2]["addr"] == trace[3]["addr"]
    (segment,) = snapshot["segments"]
    live = {
        block["address"]: block
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    block = live[kept.data_ptr()]
    assert block["requested_size"] == kept.nbytes
    assert block["residency"] == "resident"
    requested = sum(block["requested_size"] for block in live.values())
    assert requested == segment["requested_size"]
    assert requested == torch.chameleon.memory_allocated()
    assert segment["allocated_size"] == torch.chameleon.memory_reserved()
    _C.evict(kept)
    (segment,) = torch.chameleon.memory_snapshot()
    (block,) = [b for b in segment["blocks"] if b["address"] == kept.data_ptr()]
    assert block["residency"] in ("evicting", "host")


def test_frames_name_this_file():
    memory._record_memory_history(clear_history=True)
    kept = make_and_lose()
    snapshot = memory._snapshot()
    trace = snapshot["device_traces"][0]
    for entry in trace[:2]:
        names = [(f["filename"], f["name"]) for f in entry["frames"]]
        assert (__file__, "make_and_lose") in names, entry["action"]
        assert all(type(frame["line"]) is int for frame in entry["frames"])
    (segment,) = snapshot["segments"]
    (block,) = [b for b in segment["blocks"] if b["address"] == kept.data_ptr()]
    assert (__file__, "make_and_lose") == (
        block["frames"][0]["filename"],
        block["frames"][0]["name"],
    )


@pytest.mark.parametrize(
    ("context", "alloc", "free", "live"),
    [
        (None, False, False, False),
        ("state", False, False, True),
        ("alloc", True, False, True),
        ("all", True, False, True),
    ],
)
def test_context_says_which_stacks(context, alloc, free, live):
    memory._record_memory_history(context=context, clear_history=True)
    kept = make_and_lose()
    snapshot = memory._snapshot()
    trace = snapshot["device_traces"][0]
    assert bool(trace[0]["frames"]) is alloc
    assert bool(trace[-1]["frames"]) is free
    (segment,) = snapshot["segments"]
    (block,) = [b for b in segment["blocks"] if b["address"] == kept.data_ptr()]
    assert bool(block["frames"]) is live


def test_state_keeps_no_history():
    memory._record_memory_history("state", clear_history=True)
    kept = make_and_lose()
    snapshot = memory._snapshot()
    assert snapshot["device_traces"] == [[]]
    (segment,) = snapshot["segments"]
    (block,) = [b for b in segment["blocks"] if b["address"] == kept.data_ptr()]
    assert block["frames"]


def test_off_records_nothing():
    memory._record_memory_history(clear_history=True)
    memory._record_memory_history(None)
    kept = make_and_lose()
    snapshot = memory._snapshot()
    assert snapshot["device_traces"] == [[]]
    assert not any(b["frames"] for b in snapshot["segments"][0]["blocks"])
    del kept


def test_the_latest_events_are_kept():
    memory._record_memory_history(max_entries=5, clear_history=True)
    for size in range(1, 9):
        torch.empty(size, dtype=torch.uint8, device="chameleon")
    kept = torch.empty(4096, dtype=torch.uint8, device="chameleon")
    trace = memory._snapshot()["device_traces"][0]
    assert len(trace) == 5
    assert trace[-1]["addr"] == kept.data_ptr()


def test_skipped_actions():
    memory._record_memory_history(
        clear_history=True, skip_actions=["free_requested"]
    )
    kept = make_and_lose()
    trace = memory._snapshot()["device_traces"][0]
    assert [entry["action"] for entry in trace] == [
        *("alloc", "alloc", "free_completed")
    ]
    del kept
    with pytest.raises(ValueError, match="'nothing'"):
        memory._record_memory_history(skip_actions=["nothing"])
    with pytest.raises(ValueError, match="context is one of"):
        memory._record_memory_history(context="some")


def test_out_of_memory_is_an_event():
    memory._record_memory_history(clear_history=True)
    limit = torch.chameleon.mem_get_info()[1]
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(limit + 1, dtype=torch.uint8, device="chameleon")
    snapshot = memory._snapshot()
    check_schema(snapshot)
    (entry,) = snapshot["device_traces"][0]
    assert (entry["action"], entry["size"]) == ("oom", limit + 1)
    assert 0 < entry["device_free"] <= limit


def viz_data(page):
    """The snapshot that a page of memory_viz has in it."""
    import base64

    text = re.search(
        r'const local_files = \[\{"name": "snapshot.pickle", '
        r'"base64": "([^"]*)"',
        page,
    )
    assert text is not None
    return pickle.loads(base64.b64decode(text[1]))


def test_memory_viz_reads_the_file(tmp_path):
    memory._record_memory_history(clear_history=True)
    kept = make_and_lose()
    with evicting("all"):
        also = kept * 2
    path = tmp_path / "snapshot.pickle"
    memory._dump_snapshot(str(path))
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert os.listdir(tmp_path) == [path.name]
    with open(path, "rb") as file:
        snapshot = pickle.load(file)
    check_schema(snapshot)

    assert viz_data(_memory_viz.trace_plot(snapshot)) == snapshot
    assert viz_data(_memory_viz.trace_plot(snapshot, filter_freed=True))
    assert viz_data(_memory_viz.segment_plot(snapshot))
    flames = []
    _memory_viz.memory(snapshot, flames.append)
    _memory_viz.segments(snapshot, flames.append)
    assert all("make_and_lose" in flame for flame in flames)
    live = sum(
        int(line.rsplit(" ", 1)[1])
        for line in flames[0].splitlines()
        if ";active_allocated;" in line
    )
    assert live == torch.chameleon.memory_reserved()
    assert "segments: 1" in _memory_viz.segsum(snapshot)
    assert "MemoryError" not in _memory_viz.trace(snapshot)
    segments = snapshot["segments"]
    _memory_viz.compare([], segments, flames.append)
    assert "only_after" in flames[-1]
    json.dumps(snapshot)  # nothing but plain values
    # What the viewer's own reader knows.
    for opcode, _, _ in pickletools.genops(path.read_bytes()):
        assert opcode.name in VIEWER_READS
        assert opcode.proto <= 4
    del also


def replay(snapshot):
    """Live addresses at each event, backwards: as memory_viz does it."""
    live = {
        block["address"]: block["size"]
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    for entry in reversed(snapshot["device_traces"][0]):
        if entry["action"] == "alloc":
            assert live.pop(entry["addr"]) == entry["size"]
        elif entry["action"] == "free_completed":
            assert entry["addr"] not in live
            live[entry["addr"]] = entry["size"]
        yield sum(live.values())


def test_a_training_step_replays_backwards():
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)
    ).to("chameleon")
    optimizer = torch.optim.AdamW(model.parameters())
    before = torch.chameleon.memory_reserved()
    memory._record_memory_history(clear_history=True)
    for _ in range(2):
        model(torch.ones(16, 64, device="chameleon")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    snapshot = memory._snapshot()
    check_schema(snapshot)
    assert list(replay(snapshot))[-1] == before
    names = {
        frame["name"]
        for entry in snapshot["device_traces"][0]
        for frame in entry["frames"]
    }
    assert {"forward", "step"} <= names


def test_many_threads_record():
    memory._record_memory_history(clear_history=True)

    def work():
        for _ in range(50):
            make_and_lose()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    snapshot = memory._snapshot()
    actions = [entry["action"] for entry in snapshot["device_traces"][0]]
    assert actions.count("alloc") == 400
    assert actions.count("free_completed") == 400


def test_no_pools():
    assert torch.chameleon.memory_snapshot(mempool_id=(0, 1)) == []


@pytest.fixture
def memory_fraction():
    """Sets the fraction; all of it may be used again afterwards."""
    yield torch.chameleon.set_per_process_memory_fraction
    torch.chameleon.set_per_process_memory_fraction(1.0)


def test_fraction_limits_what_is_allocated(memory_fraction, tight):
    tight(64 * MIB)
    info = torch.chameleon.mem_get_info()
    assert torch.chameleon.get_per_process_memory_fraction() == 1.0
    gc.collect()
    live = torch.chameleon.memory_allocated()
    fraction = (live + 100 * MIB) / info[1]
    memory_fraction(fraction)
    assert torch.chameleon.get_per_process_memory_fraction() == fraction
    assert torch.chameleon.mem_get_info() == info
    torch.empty(96 * MIB, dtype=torch.uint8, device="chameleon")
    named = "set_per_process_memory_fraction and lowers that limit"
    with pytest.raises(torch.OutOfMemoryError, match=named):
        torch.empty(120 * MIB, dtype=torch.uint8, device="chameleon")
    tight(32 * MIB)  # is a part of what the new budget allows
    with pytest.raises(torch.OutOfMemoryError, match=named):
        torch.empty(96 * MIB, dtype=torch.uint8, device="chameleon")
    memory_fraction(1.0)
    torch.empty(96 * MIB, dtype=torch.uint8, device="chameleon")


def test_fraction_limits_what_ops_return(memory_fraction, tight):
    tight(64 * MIB)
    x = torch.zeros(24 * MIB, dtype=torch.uint8, device="chameleon")
    gc.collect()
    live = torch.chameleon.memory_allocated()
    fraction = (live + 16 * MIB) / torch.chameleon.mem_get_info()[1]
    memory_fraction(fraction)
    named = f"or the {fraction:g} that was given to set_per_process_memory_"
    with pytest.raises(torch.OutOfMemoryError, match=re.escape(named)):
        print(x + x)
    memory_fraction(1.0)
    assert len(x + x) == len(x)


def test_fraction_of_less_than_is_live(memory_fraction):
    x = torch.zeros(4 * MIB, dtype=torch.uint8, device="chameleon")
    with pytest.raises(ValueError, match="live on chameleon:0 already"):
        memory_fraction(1e-3)
    assert torch.chameleon.get_per_process_memory_fraction() == 1.0
    assert x.sum().item() == 0


def test_fraction_that_is_none(memory_fraction):
    with pytest.raises(ValueError, match=r"Invalid fraction value: 1\.5"):
        memory_fraction(1.5)
    with pytest.raises(TypeError, match="must be `float`"):
        memory_fraction(1)
    assert torch.chameleon.get_per_process_memory_fraction() == 1.0


def test_fraction_before_the_first_use(fresh):
    code = """
import torch, torch_chameleon
from torch_chameleon import _C
torch_chameleon.config.hbm_budget = "1MiB"
torch.chameleon.set_per_process_memory_fraction(0.25)
assert _C.first_use() is None
assert torch.chameleon.get_device_properties(0).total_memory == 4 << 20
torch.empty((1 << 20) - 512, dtype=torch.uint8, device="chameleon")
try:
    torch.empty((1 << 20) + 512, dtype=torch.uint8, device="chameleon")
except torch.OutOfMemoryError:
    print("ok")
"""
    assert fresh(code) == "ok"
