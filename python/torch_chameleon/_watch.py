"""`torch_chameleon.watch`: what happens, while it happens."""

import math
import shutil
import sys
import time
from typing import Protocol, TextIO

from torch.types import Device

from torch_chameleon import _C, _ranks, _steps
from torch_chameleon.chameleon._utils import _get_device_index

_SUMS = (
    *("bytes_in", "bytes_out", "faults", "compute_ns", "stall_ns"),
    *("rerun_ops", "forecast_hits", "forecast_misses"),
)
_LEARNED = 0.99  # so many ops of a step were the expected ones
_ON_TERMINAL_S, _ELSEWHERE_S = 0.5, 10.0  # between two lines


class Writer(Protocol):
    """What `watch` asks of a writer: TensorBoard's SummaryWriter has it."""

    def add_scalar(
        self, tag: str, scalar_value: float, global_step: int
    ) -> object:
        """Takes one value of a step."""


class watch:  # noqa: N801 (it is called like a function)
    """Shows one line about every step, inside a `with` block.

    A step ends at `torch_chameleon.step`, or where that is never called, at the
    end of an optimizer's. On a terminal the line is rewritten in place; in a
    pipe or a log lines are one below the other, and the last step always has
    one. It fits 80 columns, or the terminal. Only counters are read: the device
    is not waited for. How much of a step compute waited for bytes is shown on
    `cpu` and `simulated`. On `cuda` it is known only when the device has come
    to the step's end, which is later than the program: `profiler.last_step`
    waits for that, and says it. On `simulated` all times are modelled.

    Where torchrun started several processes, the lines of one rank begin with
    it and stand one below the other, since all ranks may share a terminal.

    "learning" stands in the line until a step's ops were the expected ones:
    what follows it is not yet planned. Afterwards the share of ops that were
    not is shown, where it is more than 1 %.

    Args:
        writer: Gets the same figures as scalars, every step, under
            "chameleon/": a `torch.utils.tensorboard.SummaryWriter` or anything
            that has its `add_scalar`.
        file: Where the line goes, default stderr.
        interval_s: Seconds between two lines, default 0.5 on a terminal and 10
            elsewhere; `math.inf`: there are no lines, only `writer` gets them.
        device: The device, default the current one.

    Examples:
        >>> import sys, torch, torch_chameleon
        >>> x = torch.ones(4, device="chameleon")
        >>> with torch_chameleon.watch(file=sys.stdout) as live:
        ...     y = x + 1
        ...     torch_chameleon.step()  # doctest: +ELLIPSIS
        step 1, ...
        >>> live.steps
        1
    """

    def __init__(
        self,
        writer: Writer | None = None,
        *,
        file: TextIO | None = None,
        interval_s: float | None = None,
        device: Device = None,
    ) -> None:
        self.steps = 0
        self.figures: dict[str, float] = {}  # of the last step
        self._writer = writer
        self._file = sys.stderr if file is None else file
        rank, ranks = _ranks.place()
        self._prefix = f"rank {rank}: " if ranks > 1 else ""
        self._is_terminal = self._file.isatty() and ranks == 1
        if interval_s is None:
            interval_s = _ON_TERMINAL_S if self._is_terminal else _ELSEWHERE_S
        self._interval_s = interval_s
        self._index = _get_device_index(device, optional=True)
        self._before: dict[str, int] = {}
        self._began_s = 0.0
        self._has_learned = False  # what a step is
        self._shown_s = float("-inf")
        self._shown_step = 0
        self._width = 0  # of the line that is on the terminal

    def __enter__(self) -> "watch":
        self._before = _C.swap_stats(self._index)
        self._began_s = time.perf_counter()
        _steps.listen(self._step_ended)
        return self

    def __exit__(self, *error: object) -> None:
        _steps.stop_listening(self._step_ended)
        if self._interval_s < math.inf and self._shown_step < self.steps:
            self._show()
        if self._width:
            self._file.write("\n")
            self._file.flush()

    def _step_ended(self) -> None:
        now_s = time.perf_counter()
        stats = _C.swap_stats(self._index)
        self.steps += 1
        modelled = _C.first_use() and _C.physical_device() == "simulated"
        duration_s = None if modelled else now_s - self._began_s
        self.figures = figures_of(self._before, stats, duration_s)
        self._before, self._began_s = stats, now_s
        if self._writer is not None:
            for name, value in self.figures.items():
                self._writer.add_scalar(f"chameleon/{name}", value, self.steps)
        if self.figures["forecast_share"] >= _LEARNED:
            self._has_learned = True
        if self._interval_s < math.inf and (
            now_s - self._shown_s >= self._interval_s
        ):
            self._shown_s = now_s
            self._show()

    def _show(self) -> None:
        self._shown_step = self.steps
        columns = (
            shutil.get_terminal_size().columns if self._is_terminal else 80
        )
        columns -= 1 + len(self._prefix)
        text = self._prefix + line_of(
            self.steps, self.figures, columns, self._has_learned
        )
        if self._is_terminal:
            self._file.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._file.write(text + "\n")
        self._file.flush()


def figures_of(
    before: dict[str, int], after: dict[str, int], duration_s: float | None
) -> dict[str, float]:
    """One step in figures: levels of now, sums of the step.

    Args:
        before: `swap_stats` when the step began.
        after: When it ended.
        duration_s: How long it took the program; None: it took the device's
            modelled time.

    Returns:
        Figures by name; `_share` is from 0 to 1.
    """
    # Somebody may have reset the counters in between.
    step = {
        key: after[key] - before[key]
        if after[key] >= before[key]
        else after[key]
        for key in _SUMS
    }
    if duration_s is None:
        duration_s = (step["compute_ns"] + step["stall_ns"]) / 1e9
    forecast = step["forecast_hits"] + step["forecast_misses"]
    return {
        "step_s": duration_s,
        "logical_bytes": after["logical_bytes"],
        "resident_bytes": after["resident_bytes"],
        "hbm_budget": after["hbm_budget"],
        "host_bytes": after["host_bytes"],
        "bytes_in": step["bytes_in"],
        "bytes_out": step["bytes_out"],
        "faults": step["faults"],
        "rerun_ops": step["rerun_ops"],
        "stall_s": step["stall_ns"] / 1e9,
        "forecast_share": step["forecast_hits"] / forecast if forecast else 0.0,
        "forecast_misses": step["forecast_misses"],
    }


def line_of(
    number: int, figures: dict[str, float], columns: int, has_learned: bool
) -> str:
    """The figures of a step as a line.

    Args:
        number: Of the step, from 1.
        figures: Of `figures_of`.
        columns: It may take. What is least important is left out.
        has_learned: A step was as forecast, this one or one before it.
    """
    unforeseen = 1 - figures["forecast_share"]
    resident = _sizes("/", figures["resident_bytes"], figures["hbm_budget"])
    moved = _sizes("/", figures["bytes_in"], figures["bytes_out"])
    # The most important first; None: there is nothing to say.
    parts = [
        f"step {number}",
        f"{figures['step_s']:.3g} s",
        None if has_learned else "learning",
        f"HBM {resident}",
        _part("waited {:.0%}", figures["stall_s"] / (figures["step_s"] or 1)),
        f"in/out {moved}",
        f"host {_sizes('', figures['host_bytes'])}",
        _part("re-ran {:,.0f} ops", figures["rerun_ops"]),
        f"{unforeseen:.0%} unforeseen"
        if has_learned
        and figures["forecast_misses"] > 0
        and unforeseen > 1 - _LEARNED
        else None,
    ]
    line = ""
    for part in filter(None, parts):
        longer = f"{line}, {part}" if line else part
        if len(longer) <= columns:
            line = longer
    return line or f"step {number}"[:columns]


def _part(text: str, value: float) -> str | None:
    """The text with its value, if that is not shown as nothing."""
    shown = text.format(value)
    return None if shown == text.format(0) else shown


def _sizes(between: str, *counts: float) -> str:
    """Three digits each, and the unit of the largest."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = 0
    while max(counts) >= 999.5 * 1024**power and power < len(units) - 1:
        power += 1
    numbers = [count / 1024**power for count in counts]
    return (
        between.join(
            f"{number:.0f}" if number >= 99.5 else f"{number:.3g}"
            for number in numbers
        )
        + f" {units[power]}"
    )
