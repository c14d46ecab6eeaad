"""What a launcher does about a failure."""

import argparse
from typing import Protocol

from torch_chameleon.elastic._chooser import Chooser
from torch_chameleon.elastic._devices import lose_device
from torch_chameleon.elastic._failure import Failure
from torch_chameleon.elastic._option import (
    FROM_CHECKPOINT,
    IN_PLACE,
    resharded,
)


class Policy(Protocol):
    """Decides what the next launch is like; the launch counts them."""

    def next_launch(
        self, options: argparse.Namespace, failure: Failure
    ) -> str | None:
        """After a launch that failed.

        Args:
            options: The launcher's, torchrun's among them, which may change.
            failure: What happened.

        Returns:
            What is done, for people; None: nothing is left to do.
        """


class InPlace:
    """All workers are started again, as many as there were."""

    def next_launch(
        self, options: argparse.Namespace, failure: Failure
    ) -> str | None:
        """See `Policy`."""
        return IN_PLACE


class Heal:
    """The replica that failed is started again; the others bring it back."""

    def next_launch(
        self, options: argparse.Namespace, failure: Failure
    ) -> str | None:
        """See `Policy`."""
        return "healed"


class Reshard:
    """The worker that failed is lost; the others go on with all of the state.

    They take its samples, too, where a step may not have fewer.

    For one machine: the memory of the worker that is lost is there still.
    """

    def next_launch(
        self, options: argparse.Namespace, failure: Failure
    ) -> str | None:
        """See `Policy`."""
        ranks = int(options.nproc_per_node) - 1
        if not ranks:
            return None
        lose_device(options, failure.rank, ranks + 1)
        options.nproc_per_node = str(ranks)
        if options.allow_fewer_samples:
            return f"fewer samples on {ranks}"
        options.shares = ranks
        return resharded(ranks)


class Checkpoint:
    """All workers are started again, and read the newest checkpoint."""

    def next_launch(
        self, options: argparse.Namespace, failure: Failure
    ) -> str | None:
        """See `Policy`."""
        failure.forget()
        return FROM_CHECKPOINT


BUILT: dict[str, type[Policy]] = {
    "auto": Chooser,
    "in-place": InPlace,
    "heal": Heal,
    "reshard": Reshard,
    "checkpoint": Checkpoint,
}
NAMES = tuple(BUILT)
