"""Prices what can be done about a failure.

As in Odyssey (arXiv:2508.21613), where a performance model chooses the policy
at the moment of a failure. What an option costs is the time until all are back,
the steps that are done again, and the samples that are not taken until the
repair: of `repair_s` seconds a share of 1 - (samples a second then) / (now).
"""

from torch_chameleon.elastic._option import FROM_CHECKPOINT, IN_PLACE, Option
from torch_chameleon.elastic._outlook import Outlook
from torch_chameleon.elastic._situation import Situation

_ALIKE_S = 1e-3
REPAIR_S = 3600.0  # a round number: how long it takes is the machine's owner's


def price(
    now: Situation,
    repair_s: float,
    is_device_lost: bool = False,
    restart_s: float = 0,
    may_take_fewer: bool = False,
) -> Outlook:
    """What each option costs, and why others are none.

    Args:
        now: Where the training is.
        repair_s: How long a lost device is away.
        is_device_lost: Whether fewer ranks than now have a device.
        restart_s: What it took until workers were back, if that was measured.
            Else it is taken to be what they took to start.
        may_take_fewer: Whether a step may have fewer samples.
    """
    figures = now.figures
    restart_s = restart_s or figures.start_s
    back_s = restart_s + (figures.restore_s or figures.commit_s)
    # Who writes checkpoints and never read one: reading takes as long.
    read_s = restart_s + (figures.reading_s or figures.checkpoint_s)
    slowdown = figures.slowdown or now.ranks / max(now.ranks - 1, 1)
    slower_s = repair_s * (1 - 1 / slowdown)
    left = (now.ranks - 1) / now.ranks  # of the samples, and of the ranks
    longer = figures.longer or max(slowdown * left, 1)
    unsampled_s = repair_s * (1 - left / longer)
    fewer, saved = now.ranks - 1, int(figures.checkpoint_steps)
    lost = "its device is lost" if is_device_lost else ""
    alone = "" if fewer else "no rank is left"
    # Where nothing is written either, a run begins again: in place, too.
    forgotten = (
        "no generation is whole" if now.in_memory is None and saved else ""
    )
    unsaved = "" if saved else "none is written"
    refused = "" if may_take_fewer else "needs --allow-fewer-samples"
    again_s = (now.reached - (now.in_memory or 0)) * figures.step_s
    # Who goes on with fewer ranks takes fewer samples where that is no dearer.
    takes_fewer = may_take_fewer and unsampled_s < slower_s + _ALIKE_S
    smaller = (fewer, unsampled_s if takes_fewer else slower_s)
    rest = smaller if is_device_lost else (now.ranks, 0.0)
    read_again_s = (now.reached - saved) * figures.step_s
    asked = [
        (
            Option(IN_PLACE, now.ranks, back_s, again_s, 0),
            lost or forgotten,
        ),
        # Before the next one, which is no cheaper than its price: a rank's part
        # of the samples is a whole number.
        (
            Option(
                f"fewer samples on {fewer}",
                fewer,
                back_s,
                again_s,
                unsampled_s,
                is_fewer=True,
            ),
            refused or alone or forgotten,
        ),
        (
            Option(f"resharded onto {fewer}", fewer, back_s, again_s, slower_s),
            alone or forgotten,
        ),
        (
            Option(
                FROM_CHECKPOINT,
                rest[0],
                read_s,
                read_again_s,
                rest[1],
                is_fewer=is_device_lost and takes_fewer,
            ),
            unsaved or (is_device_lost and alone) or "",
        ),
    ]
    return Outlook(
        now,
        [option for option, why_not in asked if not why_not],
        {option.name: why_not for option, why_not in asked if why_not},
    )
