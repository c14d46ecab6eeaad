"""Prices what can be done about a failure.

As in Odyssey (arXiv:2508.21613), where a performance model chooses the policy
at the moment of a failure. What an option costs is the time until all are back,
the steps that are done again, and the samples that are not taken until the
repair: of `repair_s` seconds a share of 1 - (samples a second then) / (now).
"""

from typing import NamedTuple

from torch_chameleon.elastic._option import (
    FROM_CHECKPOINT,
    FROM_PARTNER,
    IN_PLACE,
    Option,
    resharded,
)
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
        is_device_lost: Whether fewer ranks than now have a device. On several
            machines it is a machine that is lost, with what it holds.
        restart_s: What it took until workers were back, if that was measured.
            Else it is taken to be what they took to start.
        may_take_fewer: Whether a step may have fewer samples.
    """
    figures, several = now.figures, now.machines > 1
    restart_s = restart_s or figures.start_s
    slowdown = figures.slowdown or now.ranks / max(now.left, 1)
    slower_s = repair_s * (1 - 1 / slowdown)
    left = now.left / now.ranks  # of the samples, and of the ranks
    longer = figures.longer or max(slowdown * left, 1)
    unsampled_s = repair_s * (1 - left / longer)
    lost = f"its {'machine' if several else 'device'} is lost"
    lost = lost if is_device_lost else ""
    alone = "" if now.left else "no rank is left"
    refused = "" if may_take_fewer else "needs --allow-fewer-samples"
    refused = "is for one machine" if several else refused
    memory, partner, those_left, disk = _sources(now, restart_s)
    # Who goes on with fewer ranks takes fewer samples where that is no dearer.
    takes_fewer = may_take_fewer and unsampled_s < slower_s + _ALIKE_S
    smaller = (now.left, unsampled_s if takes_fewer else slower_s)
    ranks, rest_s = smaller if is_device_lost else (now.ranks, 0.0)
    # Until another machine is there no sample is taken.
    awaited_s = repair_s if is_device_lost else 0
    asked = [
        (memory.option(IN_PLACE, now.ranks, 0), lost or memory.why_not),
        (
            partner.option(FROM_PARTNER, now.ranks, awaited_s),
            partner.why_not or ("" if several else lost),
        ),
        # Before the next one, which is no cheaper than its price: a rank's part
        # of the samples is a whole number.
        (
            those_left.option(
                f"fewer samples on {now.left}", now.left, unsampled_s, True
            ),
            refused or alone or those_left.why_not,
        ),
        (
            those_left.option(resharded(now.left), now.left, slower_s),
            alone or those_left.why_not,
        ),
        (
            disk.option(
                FROM_CHECKPOINT, ranks, rest_s, is_device_lost and takes_fewer
            ),
            disk.why_not or (is_device_lost and alone) or "",
        ),
    ]
    if not (several or figures.partner_steps):
        del asked[1]  # on one machine nobody has a partner
    return Outlook(
        now,
        [option for option, why_not in asked if not why_not],
        {option.name: why_not for option, why_not in asked if why_not},
    )


class _Source(NamedTuple):
    """Where the state comes from, and what that costs."""

    recovery_s: float
    lost_s: float
    why_not: str

    def option(
        self, name: str, ranks: int, slower_s: float, is_fewer: bool = False
    ) -> Option:
        """One that takes it from here."""
        return Option(
            name, ranks, self.recovery_s, self.lost_s, slower_s, is_fewer
        )


def _sources(now: Situation, restart_s: float) -> list[_Source]:
    """Memory, partners' memory, what those have that are left, and disk."""
    figures, several = now.figures, now.machines > 1
    copy_s = figures.restore_s or figures.commit_s
    back_s = restart_s + copy_s
    # Who writes checkpoints and never read one: reading takes as long. What was
    # read is copied as what is in memory is, so it is never back sooner.
    reading_s = figures.reading_s or figures.checkpoint_s + copy_s
    read_s = restart_s + max(reading_s, copy_s)
    # So it is with partners. Of shards all that are left see all.
    fetch_s = figures.fetch_s or figures.partner_s
    saved, copied = int(figures.checkpoint_steps), int(figures.partner_steps)
    shards = now.ranks if figures.sharded and copied else 0

    def again_s(steps: int | None) -> float:
        return (now.reached - (steps or 0)) * figures.step_s

    # Where nothing is elsewhere either, a run begins again: in place, too.
    is_elsewhere = bool(saved or copied)
    is_forgotten = now.in_memory is None and is_elsewhere
    memory = _Source(
        back_s,
        again_s(now.in_memory),
        "no generation is whole" if is_forgotten else "",
    )
    partner = _Source(
        back_s + fetch_s,
        again_s(copied),
        "" if copied else "no partner has a generation",
    )
    # A rank's memory is there without the rank, but not without its machine.
    those_left = memory
    if several or is_forgotten:
        why_not = partner.why_not if several else memory.why_not
        those_left = _Source(
            back_s + shards * figures.partner_s,
            partner.lost_s,
            why_not if is_elsewhere and not copied else "",
        )
    disk = _Source(read_s, again_s(saved), "" if saved else "none is written")
    return [memory, partner, those_left, disk]
