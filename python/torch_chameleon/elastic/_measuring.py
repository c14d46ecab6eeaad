"""Measures a training while it runs, for whoever prices a recovery."""

import os
import statistics
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch_chameleon import _C, chameleon
from torch_chameleon._config import config
from torch_chameleon.elastic._environment import machines
from torch_chameleon.elastic._ledger import Ledger
from torch_chameleon.elastic._situation import lost_together

_REMEMBERED = 9  # steps; the device has its plan before they are full
_SHARE = 100  # the model is asked for one part in so many of the time
_START_TIME = 19  # which word of /proc/PID/stat behind the name


class Measuring:
    """Keeps a ledger's figures new.

    A step with a rank less is modelled by a thread, in at most a hundredth of
    the time: it is a plan that is searched for, and then followed by nobody.
    """

    def __init__(self, ledger: Ledger, world: int):
        """Has measured nothing but how long it took to be here.

        Args:
            ledger: Where figures go.
            world: How many ranks there are.
        """
        self._ledger = ledger
        self._world = world
        self._together = lost_together(world, machines())
        self._device = chameleon.current_device()
        self._times: deque[float] = deque(maxlen=_REMEMBERED)
        self._last = 0.0
        self._due = 0.0
        self._modelling: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, "chameleon elastic model")
        ledger.measured(
            slowdown=0, start_s=_age(), sharded=0, machines=machines()
        )

    @property
    def is_sharded(self) -> bool:
        """Whether a rank has a part of the state alone."""
        return bool(self._ledger.figures.sharded)

    @is_sharded.setter
    def is_sharded(self, value: bool) -> None:
        self._ledger.measured(sharded=value)

    def step(self) -> None:
        """Notes that another step ended."""
        now = time.monotonic()
        if self._last:
            self._times.append(now - self._last)
            self._ledger.measured(step_s=statistics.median(self._times))
        self._last = now
        if len(self._times) < _REMEMBERED:
            return
        if now >= self._due and (
            self._modelling is None or self._modelling.done()
        ):
            self._modelling = self._thread.submit(self.model)

    def model(self) -> None:
        """Notes by how much a step would be longer with a rank less.

        On several machines, with a machine's ranks less. Where the device has
        recorded no step, it is not known.
        """
        together = self._together
        if self._world <= together:
            return
        began = time.monotonic()
        found = slowdown(self._device, self._world, self.is_sharded, together)
        if found is not None:
            kept = self._ledger.figures.kept_bytes if self.is_sharded else 0
            self._ledger.measured(
                slowdown=found,
                longer=longer(self._device, self._world, kept, together) or 0,
            )
        took = time.monotonic() - began
        self._due = began + max(_SHARE * took, 1)


def slowdown(
    device: int, world: int, is_sharded: bool, together: int = 1
) -> float | None:
    """What a step of the same samples would take with a rank less, by now's.

    Each rank then has `more` = N / (N - 1) times as many samples. Where state
    is sharded it has so much more of it, too; a step whose tensors all are
    `more` times as large takes `more` times what it takes within a `more`-th
    of the budget. What it takes within less is the planner's model. Since no op
    is larger in truth, a budget between stands for one within which the model
    finds no room.

    Args:
        device: The device, whose last step is the model's.
        world: How many ranks there are.
        is_sharded: Whether a rank has a part of the state alone.
        together: How many are lost at once; some are left.

    Returns:
        A factor; None: no step was recorded, or even the one that runs would
        not fit by the model.
    """
    more = world / (world - together)
    now = _C.swap_stats(device)["hbm_budget"]
    least = float(now)
    if is_sharded:
        least /= more
    if _memory_is_shared():
        least *= more
    found = _modelled(device, [now, round((now + least) / 2), round(least)])
    if found is None:
        return None
    this, *then = found
    return float(more * max([this, *filter(None, then)]) / this)


def longer(
    device: int, world: int, sharded_bytes: float, together: int = 1
) -> float | None:
    """What a step of the same ranks' samples takes with a rank less, by now's.

    State that is sharded then is N / (N - 1) times as large on each rank; the
    rest of the step has so much less room.

    Args:
        device: The device, whose last step is the model's.
        world: How many ranks there are.
        sharded_bytes: How much of the state this rank has, if it is sharded.
        together: How many are lost at once; some are left.

    Returns:
        A factor; None: no step was recorded, or it would not fit by the model.
    """
    now = _C.swap_stats(device)["hbm_budget"]
    least = now - round(sharded_bytes * together / (world - together))
    if _memory_is_shared():
        least = max(least, now)
    found = _modelled(device, [now, max(least, 1)])
    if found is None or found[-1] is None:
        return None
    return float(max(found[-1], found[0]) / found[0])


def _memory_is_shared() -> bool:
    """Whether ranks that are left have what the lost one had, too."""
    return config.hbm_budget is None and _C.physical_device() == "cpu"


def _modelled(device: int, budgets: list[int]) -> list[Any] | None:
    """What the last step would take within each; of the first one it is known.

    Equal ones are asked about once, and answered once.
    """
    once = list(dict.fromkeys(budgets))
    try:
        found = _C.what_if_here(device, lambda _: once)
    except RuntimeError:
        return None
    times = [step and step["duration_ns"] for step in found["steps"]]
    return None if times[0] is None else times


def _age() -> float:
    """For how many seconds this process has run."""
    words = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    ticks = int(words[_START_TIME])
    began = ticks / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began
