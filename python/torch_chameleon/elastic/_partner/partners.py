"""Copies of generations in the memory of other machines."""

import logging
import os
import secrets
import threading
import time
from collections.abc import Iterable

from torch_chameleon.elastic._found import Found
from torch_chameleon.elastic._group import Group
from torch_chameleon.elastic._image import Image
from torch_chameleon.elastic._keeper import KEEPER_VARIABLE
from torch_chameleon.elastic._memory import Memory
from torch_chameleon.elastic._partner.holdings import Holding, Holdings, Key
from torch_chameleon.elastic._partner.link import Link
from torch_chameleon.elastic._partner.passing import Passing
from torch_chameleon.elastic._partner.placement import (
    partner_of,
    partnered,
    why_not,
)
from torch_chameleon.elastic._slot import Slot

PARTNER_VARIABLE = "CHAMELEON_PARTNER"
# A partner on the same machine will do.
ONE_MACHINE_VARIABLE = "CHAMELEON_TEST_ONE_MACHINE"
_BROKEN = -1
_LIFE_BITS = 62

_log = logging.getLogger("torch_chameleon.elastic")


class Partners:
    """Each rank's generations are in a rank's memory on another machine, too.

    So Gemini (SOSP'23) places them. A thread copies one that is whole on all
    ranks, and no step waits for it: those that all have meanwhile are left out.
    Until all partners have it whole, all ranks keep the one before, and so do
    its partners: when a machine is gone there is one of which every part is
    somewhere. Those that are left have it whole then, however many they are.
    """

    def __init__(
        self,
        group: Group,
        memory: Memory,
        link: Link | None,
        are_apart: bool = True,
    ):
        """Has copied nothing yet.

        Args:
            group: The ranks.
            memory: Of this rank, where its generations and those copies are.
            link: By which they go; None: this rank is alone.
            are_apart: Whether partners are on other machines. Else nothing is
                copied: what machines that are gone left is read, and that is
                all.
        """
        self.kept: Slot | None = None  # what partners have
        self.source: Slot | None = None  # what they get now
        self.life = 0  # of the training: since all ranks were started
        self._group = group
        self._memory = memory
        self._link = link
        self._are_apart = are_apart
        self._begun = 0  # number of the generation that they get, or got last
        self._over = 0  # the same, when this rank has sent and received it

    @property
    def taken(self) -> list[Slot]:
        """Slots of this rank that must stay as they are."""
        return [each for each in (self.kept, self.source) if each is not None]

    def meet(self, slot: Slot) -> None:
        """Returns when all ranks have called it; a copy may begin then.

        Args:
            slot: A generation that is whole on this rank.

        Raises:
            RuntimeError: One of them ended before.
        """
        if not self._are_apart or self._link is None:
            self._group.meet()
            return
        over = min(each for (each,) in self._group.gather([self._over]))
        if over == _BROKEN and self._over in (_BROKEN, self._begun):
            self.source = None  # all others wait, for nothing
        if over < self._begun:
            return  # left out
        if self.source is not None:
            self._keep(self.source)
        self.source, self._begun = slot, slot.generation
        kept = self.kept.generation if self.kept else -1
        into = min(
            (x for x in self._memory.partner_slots if x.generation != kept),
            key=lambda each: each.generation,
        )
        self._link.start(
            threading.Thread(
                target=self._copy,
                args=(slot, into),
                name="chameleon elastic partner",
                daemon=True,
            )
        )

    def settle(self) -> None:
        """Waits until this rank has sent and received what was begun."""
        while self._over not in (self._begun, _BROKEN):
            time.sleep(1e-3)

    def _copy(self, slot: Slot, into: Slot) -> None:
        rank, world = self._group.rank, self._group.world
        began = time.monotonic()
        assert self._link is not None
        try:
            self._link.move(
                (slot, partner_of(rank, world)), (into, partnered(rank, world))
            )
        except Exception as error:  # a network is no reason to stop
            self._over = _BROKEN
            _log.info(
                "chameleon: no more copies to partners until workers are "
                "started again: %s",
                error,
            )
            return
        took = time.monotonic() - began
        self._memory.ledger.measured(partner_s=took)
        self._over = slot.generation

    def fetch(
        self, images: dict[Slot, Image]
    ) -> tuple[dict[Slot, Image], Found | None]:
        """Gets this rank's part of what all can go back to. All ranks call it.

        Args:
            images: What is whole in this rank's own slots.

        Returns:
            What is to be used of them; and what all go back to, if as many
            ranks as there are now did not write it.

        Raises:
            RuntimeError: Another rank ended.
        """
        group, memory = self._group, self._memory
        copies = {
            slot: image
            for slot in memory.partner_slots
            if (image := Image.of(slot))
        }
        holdings = self._exchange(images, copies)
        others = {x: y for x, y in images.items() if y.world != group.world}
        newest = holdings.newest
        if newest is None:
            self._keep(None, is_safe=False)
            return others, None
        moves = holdings.moves(newest)
        if moves:
            taken = self._move(moves, newest, holdings, {**copies, **images})
            group.meet()  # all have theirs
            if taken is not None:
                images.pop(taken, None)
                others.pop(taken, None)
                if image := Image.of(taken):
                    images[taken] = image
        copied = holdings.copied(newest)
        if copied is not None:
            is_same = holdings.writers(copied) == group.world
            self._keep(
                _slot_of(copied, group.rank, images)
                if is_same
                else next(iter(_of(copied, {**images, **copies})), None),
                holdings.is_copied(copied),
            )
        else:
            self._keep(None, is_safe=False)
        if holdings.writers(newest) != group.world:
            for slot in _of(newest, others):
                others.pop(slot)
            return others, self._whole(newest, holdings, {**copies, **images})
        for slot, image in _of(newest, images).items():
            if image.rank == group.rank:
                others[slot] = image
            else:  # ranks have other numbers now
                slot.discard()
        return others, None

    def _exchange(
        self, images: dict[Slot, Image], copies: dict[Slot, Image]
    ) -> Holdings:
        """What all have; begins a life."""
        memory = self._memory
        rows = [_holding(slot, images) for slot in memory.slots]
        rows += [_holding(slot, copies, 1) for slot in memory.partner_slots]
        words = [word for row in rows for word in row]
        said = self._group.gather([secrets.randbits(_LIFE_BITS), *words])
        self.life = said[0][0]
        size = len(Holding._fields)
        return Holdings(
            [
                [
                    Holding(*each[at : at + size])
                    for at in range(1, len(each), size)
                ]
                for each in said
            ]
        )

    def _whole(
        self, key: Key, holdings: Holdings, images: dict[Slot, Image]
    ) -> Found:
        """A generation of another number of ranks, for this process."""
        held = {image.rank: slot for slot, image in _of(key, images).items()}
        slot = held.get(self._group.rank, next(iter(held.values())))
        parts: Iterable[Image] = ()
        if holdings.is_needed_whole(key):
            self._memory.ledger.fetches += 1
            parts = Passing(self._group, holdings.givers(key), held)
        return Found(key.number, slot.steps, images[slot], parts)

    def _keep(self, slot: Slot | None, is_safe: bool = True) -> None:
        """Notes what must stay for the next time that a machine is lost."""
        self.kept = slot
        steps = slot.steps if slot is not None and is_safe else 0
        self._memory.ledger.measured(partner_steps=steps)

    def _move(
        self,
        moves: list[tuple[int, int]],
        newest: Key,
        holdings: Holdings,
        images: dict[Slot, Image],
    ) -> Slot | None:
        """Gives and gets what has to be; the slot where this rank's is then."""
        assert self._link is not None  # who is alone has all of it
        began, rank, found = time.monotonic(), self._group.rank, None
        for giver, taker in moves:
            if rank not in (giver, taker):
                continue
            writer = holdings.image_for(newest, taker)
            given = _slot_of(newest, writer, images)
            if rank == taker:
                found = self._unneeded(newest)
            if giver == taker:
                assert given is not None
                assert found is not None
                found.receive(given.head).copy_(given.body)
                found.received()
            elif rank == giver:
                assert given is not None
                self._link.move(sent=(given, taker))
            else:
                assert found is not None
                self._link.move(received=(found, giver))
        if moves:
            ledger = self._memory.ledger
            ledger.fetches += 1
            ledger.measured(fetch_s=time.monotonic() - began)
            if rank == 0:
                _log.warning(
                    "chameleon: %d of %d ranks had their state from a partner",
                    len(moves),
                    self._group.world,
                )
        return found

    def _unneeded(self, newest: Key) -> Slot:
        """One of this rank's slots that has not what others may need."""
        return min(
            (
                slot
                for slot in self._memory.slots
                if (slot.generation, slot.life) != newest
            ),
            key=lambda each: each.generation,
        )


def _holding(
    slot: Slot, images: dict[Slot, Image], is_copy: int = 0
) -> Holding:
    if slot not in images:
        return Holding()
    image = images[slot]
    return Holding(
        slot.generation,
        slot.life,
        image.rank,
        image.world,
        is_copy,
        int(image.is_sharded),
    )


def _of(key: Key, images: dict[Slot, Image]) -> dict[Slot, Image]:
    """Images of a generation, whoever wrote them."""
    return {
        slot: image
        for slot, image in images.items()
        if (slot.generation, slot.life) == key
    }


def _slot_of(key: Key, rank: int, images: dict[Slot, Image]) -> Slot | None:
    """That which has a rank's image of a generation."""
    found = _of(key, images).items()
    return next((slot for slot, image in found if image.rank == rank), None)


def from_environment(group: Group, memory: Memory) -> Partners | None:
    """Those that the launcher was told of. All ranks call it.

    Args:
        group: The ranks.
        memory: Of this one.

    Returns:
        None: It was told of none.

    Raises:
        ValueError: There can be none.
    """
    said = os.environ.get(PARTNER_VARIABLE, "0")
    if said not in ("0", "1"):
        raise ValueError(
            f"environment variable {PARTNER_VARIABLE}={said!a} must be 0 or 1"
        )
    machine = int(os.environ.get("GROUP_RANK", 0))
    wanted, machines, lives = zip(
        *group.gather([int(said), machine, memory.ledger.lives]), strict=True
    )
    if not any(wanted):
        return None
    if not all(wanted):
        raise ValueError(
            f"environment variable {PARTNER_VARIABLE} is 1 on rank "
            f"{wanted.index(1)} and not on rank {wanted.index(0)}; all "
            "launchers need --partner, or none"
        )
    reason = why_not(machines, ONE_MACHINE_VARIABLE in os.environ)
    # A launcher of ours waits for others. Or they are gone: no mistake either.
    may_be_alone = len(set(machines)) == 1 and KEEPER_VARIABLE in os.environ
    if reason and not (any(lives) or may_be_alone):
        raise ValueError(f"environment variable {PARTNER_VARIABLE}=1: {reason}")
    if reason and group.rank == 0:
        _log.warning("chameleon: no copies go to partners: %s", reason)
    link = Link.of_all() if group.world > 1 else None
    return Partners(group, memory, link, are_apart=not reason)
