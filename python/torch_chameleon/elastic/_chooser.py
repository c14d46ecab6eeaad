"""Chooses what is done about each failure, by price."""

import argparse
import logging

from torch_chameleon.elastic._devices import lose_device
from torch_chameleon.elastic._failure import Failure
from torch_chameleon.elastic._option import FROM_CHECKPOINT
from torch_chameleon.elastic._pricing import price

_AT_ONCE = 1  # step: a rank that fails again so soon has no device

_log = logging.getLogger("torch_chameleon.elastic")


class Chooser:
    """A policy that does the cheapest of what can be done.

    A device is taken to be lost where the user or its driver says so, or where
    the same rank failed twice at once.
    """

    def __init__(self) -> None:
        """Has seen no failure."""
        self._last: tuple[int, int] | None = None  # rank, steps reached

    def next_launch(
        self, options: argparse.Namespace, failure: Failure
    ) -> str | None:
        """See `Policy`."""
        outlook = price(
            failure.now,
            options.repair_seconds,
            self._failed_at_once(failure)
            or options.lost_devices
            or failure.is_device_lost,
            failure.restart_s,
            options.allow_fewer_samples,
        )
        _log.warning("chameleon: a rank failed: %s", outlook.line())
        best = outlook.best
        if best is None:
            return None
        if best.ranks < failure.now.ranks:
            self._last = None  # ranks have other numbers now
            lose_device(options, failure.rank, failure.now.ranks)
            if not best.is_fewer:
                options.shares = best.ranks
        if best.name == FROM_CHECKPOINT:
            failure.forget()
        options.nproc_per_node = str(best.ranks)
        return best.name

    def _failed_at_once(self, failure: Failure) -> bool:
        last, reached = self._last, failure.now.reached
        self._last = failure.rank, reached
        return (
            last is not None
            and last[0] == failure.rank
            and reached - last[1] <= _AT_ONCE
        )
