"""What the profiler knows: the last step in figures, its trace, a timeline.

The profiler is always on. It follows the sequence of ops, finds steps, and
forecasts what comes next; `torch_chameleon.step` may mark where steps end.
Times are those of the device that runs: measured on `cpu`, modelled on
`simulated`.
"""

import os
from typing import TypedDict, cast

from torch.types import Device

from torch_chameleon import _C
from torch_chameleon._replace_file import replace_file
from torch_chameleon.chameleon._utils import _get_device_index

__all__ = [
    "Divergence",
    "History",
    "Layer",
    "Matching",
    "Plan",
    "State",
    "StepFigures",
    "export_timeline",
    "export_trace",
    "last_step",
    "load_plans",
    "record_timeline",
    "save_plans",
    "state",
]


class Layer(TypedDict):
    """What a plan does with the bytes that some ops of forward make.

    Layers are found from what the ops read and write. `first_op` and `ops` are
    positions in the step.
    """

    first_op: int
    ops: int
    kept_bytes: int
    moved_bytes: int
    rerun_bytes: int
    rerun_ops: int


class Plan(TypedDict):
    """The plan that was followed, as the planner modelled it.

    Of the bytes that the step carries, some stay in device memory, some move
    to the host and back, and some are dropped and made again by `rerun_ops`
    ops. It carries what lives longer than the step (parameters, optimizer
    state), and what forward makes for backward; the latter by `layers` too.
    `modelled_mirror_ns`: of the duration, waits for what commits keep
    (`torch_chameleon.elastic`), where the way out is too slow for both.
    """

    hbm_budget: int
    actions: int
    modelled_duration_ns: int
    modelled_mirror_ns: int
    modelled_bytes_in: int
    modelled_bytes_out: int
    kept_bytes: int
    moved_bytes: int
    rerun_bytes: int
    rerun_ops: int
    layers: list[Layer]


class StepFigures(TypedDict):
    """One step; see `last_step`."""

    duration_ns: int
    compute_ns: int
    stall_ns: int
    collective_ns: int
    collective_wait_ns: int
    other_ns: int
    bytes_in: int
    bytes_out: int
    mirror_bytes_out: int
    bound_ns: int
    host_bytes: int
    ops: int
    forecast_hits: int
    forecast_misses: int
    plan: Plan | None


class History(TypedDict):
    """What is remembered: different sequences of ops, and their size."""

    sequences: int
    ops: int
    bytes: int
    limit_bytes: int
    dropped_sequences: int


class Matching(TypedDict):
    """What the run is matched with.

    `state` is "following" (a known sequence from its beginning), "rejoined"
    (a known sequence from its middle on) or "unknown"; then `sequence` is 0.
    The next op is number `position` of `length`. `marked_steps`: the program
    says where steps end.
    """

    state: str
    sequence: int
    position: int
    length: int
    marked_steps: bool


class Divergence(TypedDict):
    """Where the run was not as forecast: an op of it, and what was expected.

    `kind` is "another op", "another operand", "another result", "past the
    end" or "ended early"; `op` counts from the first use of the device,
    `position` in the sequence that was followed. `expected` and `seen` are
    names of ops, None where there was none.
    """

    kind: str
    step: int
    op: int
    position: int
    expected: str | None
    seen: str | None


class State(TypedDict):
    """See `state`."""

    history: History
    matching: Matching
    divergences: int
    last_divergence: Divergence | None


def last_step(device: Device = None) -> StepFigures:
    """The figures of the last step that ended. Waits until it has.

    - `duration_ns`: from the end of the step before to its own end, on the
      device's clock.
    - `compute_ns`: kernels ran, those of ops that ran again too. Exact on
      `simulated`; else estimated from ops that were timed, a few each step.
    - `stall_ns`: compute waited for bytes. Exact on `simulated` and `cpu`; on
      `cuda` what was not compute, as far as the copies can explain it.
    - `collective_ns`: collectives of several GPUs ran, beside compute or not;
      `collective_wait_ns`: compute waited for one, or for another stream of the
      program once there was one, and this rank's bytes did not keep it
      waiting. Plans are compared without it.
    - `other_ns`: neither. Nothing ran, and no copy was waited for: the program
      came late with its next op (Python, a data loader, logging), or memory
      was managed before it. 0 on `simulated`, whose clock is the device's
      (or 1, of rounding).
      `duration_ns` is the sum of `compute_ns`, `stall_ns`,
      `collective_wait_ns` and `other_ns`.
    - `bytes_in`, `bytes_out`: copies that were submitted during the step.
    - `mirror_bytes_out`: beside those, what was copied from device memory for
      commits (`torch_chameleon.elastic`).
    - `bound_ns`: the least time in which this compute could be done and these
      bytes be moved: the largest of compute_ns, bytes_in and bytes_out over
      the speed of their direction, and both together over the joint speed of
      the link. It says what better timing could gain, not what moving fewer
      bytes could.
    - `host_bytes`: the most that evicted tensors had on the host at a time.
    - `ops`: how many ran; `forecast_hits` of them were the expected one,
      `forecast_misses` were not.
    - `plan`: the plan that was followed at the end of the step, or None; see
      `Plan`.

    Where `torch_chameleon.step` does not mark steps, those of fewer than 32
    ops count as part of the next one, and the end of a step that is new may
    be found some ops late.

    Args:
        device: The device, default the current one.

    Returns:
        The figures by name.

    Raises:
        RuntimeError: No step has ended yet.

    Examples:
        >>> import torch, torch_chameleon
        >>> from torch_chameleon import profiler
        >>> x = torch.ones(4, device="chameleon")
        >>> for _ in range(3):
        ...     y = x + 1
        ...     torch_chameleon.step()
        >>> figures = profiler.last_step()
        >>> figures["forecast_hits"], figures["forecast_misses"]
        (1, 0)
    """
    index = _get_device_index(device, optional=True)
    return cast(StepFigures, _C.last_step(index))


def state(device: Device = None) -> State:
    """What the profiler holds, what it follows, and where it was last wrong.

    Args:
        device: The device, default the current one. No use of it.

    Returns:
        `history`, `matching`, the number of `divergences` and the
        `last_divergence`, None if there was none.

    Examples:
        >>> from torch_chameleon import profiler
        >>> history = profiler.state()["history"]
        >>> history["bytes"] <= history["limit_bytes"] + 2**20
        True
    """
    index = _get_device_index(device, optional=True)
    return cast(State, _C.profiler_state(index))


def export_trace(path: str | os.PathLike[str], device: Device = None) -> None:
    """Writes the last step as a trace: JSON lines, one op a line.

    The first line is a header with the budget in force and the link. A line
    of an op has its name, begin `t` and `dur_ns` in ns, and storages as
    `[number, bytes]`: `in` had a value before the op, `out` are created by it;
    `write` are the numbers of those it writes, `free` of those that die after
    it. Four keys may be missing: `over`, the numbers of `in` that it writes
    completely without reading them; `fresh`, the numbers of `out` that it is
    handed as memory that no op has touched before; `workspace`, the bytes that
    it takes and gives back meanwhile; and `may_rerun`, 1 where running the op
    again gives the same bits. `{"step":1}` ends the file.
    Durations are estimates from the ops that were timed. Each op is there as
    the program called it, once: what the device ran again is `rerun_ns` of
    `swap_stats()`, and part of `compute_ns` in `last_step()`.

    Args:
        path: The file, replaced if it exists.
        device: The device, default the current one.

    Raises:
        RuntimeError: No step has ended yet.
        ValueError: The file cannot be written.

    Examples:
        >>> import json, tempfile, torch, torch_chameleon
        >>> x = torch.ones(4, device="chameleon")
        >>> for _ in range(3):
        ...     y = x + 1
        ...     torch_chameleon.step()
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     torch_chameleon.profiler.export_trace(file.name)
        ...     lines = [json.loads(line) for line in open(file.name)]
        >>> [line["op"] for line in lines if "op" in line]
        ['aten::add.Tensor']
    """
    index = _get_device_index(device, optional=True)
    _C.export_trace(index, os.fspath(path))


def save_plans(path: str | os.PathLike[str], device: Device = None) -> int:
    """Saves the plans that were found, for a later run of the same program.

    A plan takes the first steps of a run to find: the steps must be seen, many
    plans are made, and some are tried. A run that loads what an earlier one
    saved follows it as soon as it knows the step. Plans change when bytes
    move, never a value.

    Args:
        path: The file, replaced as a whole if it exists.
        device: The device, default the current one.

    Returns:
        How many plans: one for each kind of step and each budget. Those that
        were loaded and not used yet are saved again.

    Raises:
        RuntimeError: No plan was made yet.
        OSError: The file cannot be written.

    Examples:
        >>> import torch_chameleon
        >>> torch_chameleon.profiler.save_plans(
        ...     "train.plans"
        ... )  # doctest: +SKIP
        2
    """
    index = _get_device_index(device, optional=True)
    text, plans = _C.saved_plans(index)
    with replace_file(path) as temporary, open(temporary, "wb") as file:
        file.write(text)
    return plans


def load_plans(path: str | os.PathLike[str], device: Device = None) -> int:
    """Loads what `save_plans` saved. Call it before the first step.

    A plan is used where it fits: for a step of the same ops on tensors of the
    same sizes, under the same `hbm_budget`, over a link of about the same
    speed, and where it runs ops again only with `config.recompute`. All else
    is planned as if nothing had been loaded.

    Args:
        path: The file.
        device: The device, default the current one.

    Returns:
        How many plans the file has.

    Raises:
        ValueError: It is no such file, of another version, or damaged. Nothing
            is loaded then.
        OSError: It cannot be read.
    """
    index = _get_device_index(device, optional=True)
    with open(path, "rb") as file:
        text = file.read()
    try:
        return _C.load_plans(index, text)
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)!r} {error}") from None


def record_timeline(enabled: bool = True, device: Device = None) -> None:
    """Starts or stops recording what `export_timeline` writes.

    While it records every op and every copy is timed, which costs time. Only
    the latest 65,536 events are kept. Starting forgets what was recorded;
    stopping waits until the device has nothing left to do.

    Args:
        enabled: Whether to record from now on.
        device: The device, default the current one.
    """
    _C.record_timeline(_get_device_index(device, optional=True), enabled)


def export_timeline(
    path: str | os.PathLike[str], device: Device = None
) -> None:
    """Writes what was recorded as a timeline for Perfetto or chrome://tracing.

    Its lanes are compute (ops), in and out (copies), re-runs, collectives,
    stalls (compute waited for bytes before an op), and decisions (bytes whose
    copy was decided on before an op). Waits until the device has nothing left
    to do.

    Args:
        path: The file, replaced if it exists.
        device: The device, default the current one.

    Raises:
        RuntimeError: Nothing was recorded.
        ValueError: The file cannot be written.

    Examples:
        >>> import json, tempfile, torch, torch_chameleon
        >>> from torch_chameleon import profiler
        >>> profiler.record_timeline()
        >>> x = torch.ones(4, device="chameleon") + 1
        >>> profiler.record_timeline(False)
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     profiler.export_timeline(file.name)
        ...     events = json.load(open(file.name))["traceEvents"]
        >>> "aten::add.Tensor" in {event["name"] for event in events}
        True
    """
    index = _get_device_index(device, optional=True)
    _C.export_timeline(index, os.fspath(path))
