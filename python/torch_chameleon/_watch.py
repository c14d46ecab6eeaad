"""`torch_chameleon.watch`: what happens, while it happens."""

import shutil
import sys
import time
from typing import Protocol, TextIO

from torch.types import Device

from torch_chameleon import _C, _steps
from torch_chameleon.chameleon._utils import _get_device_index

_SUMS = (
    *("bytes_in", "bytes_out", "faults", "compute_ns", "stall_ns"),
    *("rerun_ops", "forecast_hits", "forecast_misses"),
)


class Writer(Protocol):
    """What `watch` asks of a writer: TensorBoard's SummaryWriter has it."""

    def add_scalar(
        self, tag: str, scalar_value: float, global_step: int
    ) -> object:
        """Takes one value of a step."""


class watch:  # noqa: N801 (it is called like a function)
    """Shows one line about every step, inside a `with` block.

    A step ends at `torch_chameleon.step`, or where that is never called, at the
    end of an optimizer's. The line is rewritten in place, at most every
    `interval_s` seconds, and only on a terminal. Only counters are read: the
    device is not waited for. On `simulated` all times are modelled.

    Args:
        writer: Gets the same figures as scalars, every step, under
            "chameleon/": a `torch.utils.tensorboard.SummaryWriter` or anything
            that has its `add_scalar`.
        file: Where the line goes, default stderr.
        interval_s: Seconds between two lines.
        always: Write lines where there is no terminal too, one below the other.
        device: The device, default the current one.

    Example::

        >>> import sys, torch, torch_chameleon
        >>> x = torch.ones(4, device="chameleon")
        >>> with torch_chameleon.watch(file=sys.stdout, always=True) as live:
        ...     y = x + 1
        ...     torch_chameleon.step()  # doctest: +ELLIPSIS
        step 1 ...
        >>> live.steps
        1
    """

    def __init__(
        self,
        writer: Writer | None = None,
        *,
        file: TextIO | None = None,
        interval_s: float = 0.5,
        always: bool = False,
        device: Device = None,
    ) -> None:
        self.steps = 0
        self.figures: dict[str, float] = {}  # of the last step
        self._writer = writer
        self._file = sys.stderr if file is None else file
        self._interval_s = interval_s
        self._is_terminal = self._file.isatty()
        self._shows = always or self._is_terminal
        self._index = _get_device_index(device, optional=True)
        self._before: dict[str, int] = {}
        self._began_s = 0.0
        self._shown_s = float("-inf")
        self._width = 0  # of the line that is on the terminal

    def __enter__(self) -> "watch":
        self._before = _C.swap_stats(self._index)
        self._began_s = time.perf_counter()
        _steps.listen(self._step_ended)
        return self

    def __exit__(self, *error: object) -> None:
        _steps.stop_listening(self._step_ended)
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
        if self._shows and now_s - self._shown_s >= self._interval_s:
            self._shown_s = now_s
            self._show()

    def _show(self) -> None:
        text = line_of(self.steps, self.figures)
        if not self._is_terminal:
            self._file.write(text + "\n")
            return
        text = text[: shutil.get_terminal_size().columns - 1]
        self._file.write("\r" + text.ljust(self._width))
        self._file.flush()
        self._width = len(text)


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
    }


def line_of(number: int, figures: dict[str, float]) -> str:
    """The figures of a step as a line.

    Args:
        number: Of the step, from 1.
        figures: Of `figures_of`.
    """

    def size(name: str) -> str:
        return _C.format_bytes(int(figures[name]))

    parts = [
        f"step {number}",
        f"{figures['step_s']:.3g} s",
        f"device {size('resident_bytes')} of {size('hbm_budget')}",
        f"host {size('host_bytes')}",
        f"in {size('bytes_in')}",
        f"out {size('bytes_out')}",
    ]
    if figures["stall_s"] > 0:
        parts.append(f"waited {figures['stall_s']:.3g} s")
    if figures["rerun_ops"] > 0:
        parts.append(f"re-ran {figures['rerun_ops']:,.0f} ops")
    parts.append(f"as forecast {figures['forecast_share']:.0%}")
    return " | ".join(parts)
