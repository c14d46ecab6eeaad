"""What a launcher does about a failure."""

import argparse
from typing import Protocol

from torch_chameleon.elastic._chooser import Chooser
from torch_chameleon.elastic._devices import lose_device
from torch_chameleon.elastic._failure import Failure
from torch_chameleon.elastic._option import FROM_CHECKPOINT


class Policy(Protocol):
    """Decides what the next launch is like, if there is one."""

    def prepare(self, options: argparse.Namespace) -> None:
        """Before the first launch.

        Args:
            options: The launcher's, torchrun's among them, which may change.
        """

    def next_launch(
        self, options: argparse.Namespace, failure: Failure
    ) -> str | None:
        """After a launch whose agent gave up.

        Args:
            options: The launcher's, which may change.
            failure: What happened.

        Returns:
            What is done, for people; None: nothing is left to do.
        """


class InPlace:
    """All workers are started again, as many as there were, by the agent."""

    def prepare(self, options: argparse.Namespace) -> None:
        """See `Policy`."""

    def next_launch(
        self, options: argparse.Namespace, failure: Failure
    ) -> str | None:
        """See `Policy`."""
        return None


class Reshard:
    """The worker that failed is lost; the others go on with all of the state.

    For one machine: the memory of the worker that is lost is there still.
    """

    def prepare(self, options: argparse.Namespace) -> None:
        """See `Policy`."""
        self._left = options.max_restarts
        options.max_restarts = 0

    def next_launch(
        self, options: argparse.Namespace, failure: Failure
    ) -> str | None:
        """See `Policy`."""
        ranks = int(options.nproc_per_node) - 1
        if not self._left or not ranks:
            return None
        self._left -= 1
        lose_device(failure.rank, ranks + 1)
        options.nproc_per_node = str(ranks)
        return f"resharded onto {ranks}"


class Checkpoint:
    """All workers are started again, and read the newest checkpoint."""

    def prepare(self, options: argparse.Namespace) -> None:
        """See `Policy`."""
        self._left = options.max_restarts
        options.max_restarts = 0

    def next_launch(
        self, options: argparse.Namespace, failure: Failure
    ) -> str | None:
        """See `Policy`."""
        if not self._left:
            return None
        self._left -= 1
        failure.forget()
        return FROM_CHECKPOINT


BUILT: dict[str, type[Policy]] = {
    "auto": Chooser,
    "in-place": InPlace,
    "reshard": Reshard,
    "checkpoint": Checkpoint,
}
NAMES = ("auto", "in-place", "heal", "reshard", "checkpoint")
