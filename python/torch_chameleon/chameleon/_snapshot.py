"""Snapshots of memory as torch.cuda has them, for PyTorch's memory_viz.

They show *logical* memory: a tensor keeps its address while its bytes move. All
of a device's addresses are one segment, from the lowest to the highest one that
the snapshot speaks of. What torch.cuda does not have is beside its keys: a
block's `residency` is where its bytes are.
"""

import os
import pickle
import sys
from typing import Any, Literal

from torch.types import Device

from torch_chameleon import _C
from torch_chameleon._replace_file import write_private
from torch_chameleon.chameleon._utils import _get_device_index

_ACTIONS = {
    "alloc": ["alloc"],
    "free": ["free_requested", "free_completed"],
    "oom": ["oom"],
}
# What _record_memory_history() was last asked for, beyond what _C keeps.
_skipped: frozenset[str] = frozenset()
_most_entries = sys.maxsize


def record_memory_history(
    enabled: Literal["state", "all"] | bool | None = "all",
    context: Literal["state", "alloc", "all"] | None = "all",
    stacks: Literal["python", "all"] = "python",
    max_entries: int = sys.maxsize,
    device: Device = None,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: list[str] | None = None,
) -> None:
    """Same as `torch.cuda.memory._record_memory_history`.

    Off, it costs nothing; on, some microseconds a tensor. Deaths of tensors
    have no stacks: they may happen on any thread, at any moment.

    Args:
        enabled: "all": stacks of what lives, and a history of all events;
            "state": without the history; None: stop.
        context: Which stacks: None, of what lives ("state"), of all
            allocations in the history too ("alloc", and the same, "all").
        stacks: "all" adds C++ frames, which take long to be named.
        max_entries: So many events are kept, the latest.
        device: Not looked at, as in torch.cuda: all devices record.
        clear_history: Forget the events so far.
        compile_context: Not recorded.
        global_record_annotations: Not recorded.
        skip_actions: Actions that a snapshot shall not show.

    Raises:
        ValueError: An argument is none of those.
    """
    global _skipped, _most_entries
    if enabled in (None, False):
        _C.stop_memory_history()
        return
    _check("enabled", enabled, ("state", "all", True))
    _check("context", context, (None, "state", "alloc", "all"))
    _check("stacks", stacks, ("python", "all"))
    known = {"segment_alloc", "segment_free", "snapshot"}
    known.update(*_ACTIONS.values())
    unknown = sorted(set(skip_actions or ()) - known)
    if unknown:
        raise ValueError(
            f"skip_actions: {unknown} is not among {sorted(known)}"
        )
    _skipped = frozenset(skip_actions or ())
    _most_entries = max_entries
    _C.record_memory_history(
        {None: "none", "state": "live"}.get(context, "all"),
        stacks == "all",
        enabled != "state",
        max_entries,
        clear_history,
    )


def _check(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is one of {allowed}, not {value!r}")


def snapshot(
    device: Device = None, augment_with_fx_traces: bool = False
) -> dict[str, Any]:
    """Same as `torch.cuda.memory._snapshot`: segments and device_traces.

    Args:
        device: The device, default the current one.
        augment_with_fx_traces: Not done.
    """
    return _snapshot_of(_get_device_index(device, optional=True), True)


def memory_snapshot(
    mempool_id: tuple[int, int] | None = None, include_traces: bool = True
) -> list[dict[str, Any]]:
    """Same as `torch.cuda.memory_snapshot`: the segments of all devices.

    Args:
        mempool_id: There are no pools: of any other one there is nothing.
        include_traces: Without effect on the segments.
    """
    if mempool_id is not None and tuple(mempool_id) != (0, 0):
        return []
    segments: list[dict[str, Any]] = []
    for index in range(_C.device_count()):
        segments += _snapshot_of(index, False)["segments"]
    return segments


def dump_snapshot(
    filename: str | os.PathLike[str] = "dump_snapshot.pickle",
    augment_with_fx_traces: bool = False,
) -> None:
    """Same as `torch.cuda.memory._dump_snapshot`: a file for memory_viz.

    Open it at https://pytorch.org/memory_viz, or turn it into a page with
    `python -m torch.cuda._memory_viz trace_plot FILE -o page.html`.

    Args:
        filename: The file, replaced if it exists. Other users cannot read it:
            it has paths and names of your program.
        augment_with_fx_traces: Not done.
    """
    # The viewer reads no later protocol.
    write_private(filename, pickle.dumps(snapshot(), protocol=4))


def _snapshot_of(index: int, with_events: bool) -> dict[str, Any]:
    recorded = _C.memory_snapshot(index, with_events)
    trace = [
        entry
        for event in recorded["events"]
        for entry in _entries(index, event)
        if entry["action"] not in _skipped
    ]
    traces: list[list[dict[str, Any]]] = [[] for _ in range(_C.device_count())]
    traces[index] = trace[max(0, len(trace) - _most_entries) :]
    return {
        "segments": _segments(index, recorded["blocks"], traces[index]),
        "device_traces": traces,
        "allocator_settings": {},
        "external_annotations": [],
    }


def _entries(index: int, event: "_C.SnapshotEvent") -> list[dict[str, Any]]:
    entries = []
    for action in _ACTIONS[event["event"]]:
        entry: dict[str, Any] = {"action": action}
        if action == "oom":
            entry["device_free"] = _C.mem_get_info(index)[0]
        else:
            entry["addr"] = event["address"]
        size = "bytes" if action == "oom" else "rounded_bytes"
        entry.update(
            size=event[size],  # type: ignore[literal-required]
            stream=0,
            time_us=event["time_us"],
            compile_context="N/A",
            user_metadata="",
            frames=event["frames"],
        )
        entries.append(entry)
    return entries


def _segments(
    index: int, blocks: "list[_C.SnapshotBlock]", trace: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    ranges = [(block["address"], block["rounded_bytes"]) for block in blocks]
    ranges += [(e["addr"], e["size"]) for e in trace if "addr" in e]
    if not ranges:
        return []
    begin = min(address for address, _ in ranges)
    end = max(address + size for address, size in ranges)
    rows: list[dict[str, Any]] = []
    at = begin
    for block in sorted(blocks, key=lambda block: block["address"]):
        if block["address"] > at:
            rows.append(_unused(at, block["address"]))
        rows.append(
            {
                "address": block["address"],
                "size": block["rounded_bytes"],
                "requested_size": block["bytes"],
                "state": "active_allocated",
                "frames": block["frames"],
                "residency": block["state"],
            }
        )
        at = block["address"] + block["rounded_bytes"]
    if at < end:
        rows.append(_unused(at, end))
    live = sum(block["rounded_bytes"] for block in blocks)
    return [
        {
            "device": index,
            "address": begin,
            "total_size": end - begin,
            "allocated_size": live,
            "active_size": live,
            "requested_size": sum(block["bytes"] for block in blocks),
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": rows,
        }
    ]


def _unused(begin: int, end: int) -> dict[str, Any]:
    return {
        "address": begin,
        "size": end - begin,
        "requested_size": 0,
        "state": "inactive",
        "frames": [],
    }
