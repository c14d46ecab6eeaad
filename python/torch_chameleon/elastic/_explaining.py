"""What a failure would cost now."""

import os
import weakref

from torch_chameleon.elastic._outlook import Outlook
from torch_chameleon.elastic._pricing import REPAIR_S, price
from torch_chameleon.elastic._shares import may_be_fewer
from torch_chameleon.elastic._training import Training

REPAIR_VARIABLE = "CHAMELEON_REPAIR_SECONDS"
_current: "weakref.ref[Training] | None" = None


def is_of(training: Training) -> None:
    """From now on it is this training of which is asked.

    Args:
        training: The process's.
    """
    global _current
    _current = weakref.ref(training)


def explain(
    repair_seconds: float | None = None, device_lost: bool = False
) -> Outlook:
    """What would happen if one of the ranks were lost now.

    The same prices by which `--policy auto` chooses at a failure: the time
    until all are back, steps that are done again, and longer steps until the
    device is repaired, by the planner's model of the step that runs. Where the
    device has recorded no step yet, and in a launch whose time to be back was
    never measured, simpler figures stand in their place.

    Args:
        repair_seconds: How long a lost device is away. Default: as the launcher
            was told, else an hour.
        device_lost: Whether the rank's device is lost with it, and on several
            machines its whole machine. Default: only its process is, or what
            its machine holds.

    Returns:
        Options, prices and reasons, which print as a small table.

    Raises:
        RuntimeError: Nobody keeps a state of this process.
    """
    training = None if _current is None else _current()
    if training is None or training.generations is None:
        raise RuntimeError(
            "elastic.explain(): there is no elastic.State in this process that "
            "a launcher (python -m torch_chameleon elastic, torchrun) keeps"
        )
    if repair_seconds is None:
        repair_seconds = float(os.environ.get(REPAIR_VARIABLE, REPAIR_S))
    return price(
        training.situation(),
        repair_seconds,
        is_device_lost=device_lost,
        may_take_fewer=may_be_fewer(),
    )
