"""The committed states of a rank, and which of them all ranks have."""

import time
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from torch_chameleon.elastic._checkpoints import Checkpoints
from torch_chameleon.elastic._copies import Copies, Value
from torch_chameleon.elastic._found import Found
from torch_chameleon.elastic._group import Group
from torch_chameleon.elastic._image import Image
from torch_chameleon.elastic._keeper import Memories
from torch_chameleon.elastic._partner.partners import Partners
from torch_chameleon.elastic._slot import Slot
from torch_chameleon.elastic._snapshot import Snapshot

_COPIES = 2  # the newest, and the one before until all ranks have that
# That which is being copied, the last one that partners have, and two of the
# rank whose partner this one is.
_PARTNER_COPIES = 4


class Generations:
    """Writes a generation beside the one before, which it leaves alone.

    A generation counts when every rank has it whole. Only then does any of
    them begin the next one, in the place of the one before: whenever all are
    killed, there is one that all of them have. Further slots stand in for those
    that are being written to disk, or copied to a partner.
    """

    def __init__(
        self,
        memories: Memories,
        group: Group,
        checkpoints: Checkpoints | None = None,
        partners: Partners | None = None,
    ):
        """Takes over what earlier lives of the rank left.

        Args:
            memories: Those that this process can see.
            group: The ranks.
            checkpoints: The last resort, if there is one.
            partners: Who has copies, if there are any.
        """
        self.copies = Copies()
        self._own, self._memories = memories
        for slot in self._own.slots:
            slot.before_unmapping = self._forget
        self._group = group
        self._checkpoints = checkpoints
        self._partners = partners
        self._newest: Slot | None = None  # what was committed last
        self._number = 0  # of the last generation
        self._pending: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, "chameleon elastic")

    @property
    def most_copies(self) -> int:
        """How many generations the host has of a rank, at most."""
        most = _COPIES
        if self._checkpoints is not None:
            most += 1  # that which is being written
        if self._partners is not None:
            most += _PARTNER_COPIES
        return most

    def agree(self) -> Found | None:
        """The newest generation that all ranks have; newer ones are dropped.

        Where there is none, it is the newest checkpoint. The ledger is told.
        All ranks call it, once.
        """
        images = {
            slot: image for slot in self._own.slots if (image := Image.of(slot))
        }
        whole = None
        if self._partners is not None:
            images, whole = self._partners.fetch(images)
        usable = ([whole] if whole else []) + self._usable(images)
        numbers = [found.number for found in usable]
        reached = max(each.ledger.reached for each in self._memories)
        steps = max((found.steps for found in usable), default=0)
        numbers += [0] * (len(self._own.slots) + 1 - len(numbers))
        said = self._group.gather([*numbers, max(reached, steps)])
        reached = max(each[-1] for each in said)
        shared = set.intersection(*(set(each[:-1]) for each in said))
        self._number = max(shared, default=0)
        for slot in (*self._own.slots, *self._own.partner_slots):
            if slot.generation > self._number:
                slot.discard()
        found = next((x for x in usable if x.number == self._number), None)
        if found is None and self._checkpoints is not None:
            found = self._checkpoints.newest()
        steps = 0 if found is None else found.steps
        if self._checkpoints is not None:
            self._checkpoints.begins(steps)
        self._own.ledger.back(
            steps,
            reached,
            self._group.world,
            is_read=found is not None and not found.number,
        )
        for lost in self._memories[self._group.world :]:
            lost.ledger.reached = steps
        return found

    def commit(self, snapshot: Snapshot, steps: int) -> None:
        """Begins to copy a snapshot; a thread waits for it, and seals it.

        Args:
            snapshot: What to keep.
            steps: How many are done.

        Raises:
            RuntimeError: Another rank ended.
        """
        self.wait()
        sizes = [each.numel() * each.itemsize for each in snapshot.tensors]
        slot = self._newest = self._free_slot()
        self._number += 1
        began = time.monotonic()
        blocks, had = slot.begin(
            self._number,
            steps,
            snapshot.index,
            sizes,
            self._partners.life if self._partners else 0,
        )
        values = self.copies.begin(blocks, snapshot.tensors, had)
        self._own.ledger.measured(
            commit_s=time.monotonic() - began, kept_bytes=snapshot.copy_bytes
        )
        # A process that ends waits for it, too: no error costs a commit.
        self._pending = self._thread.submit(self._finish, slot, values)

    def _forget(self, memory: torch.Tensor) -> None:
        self.copies.forget(memory)

    def _finish(self, slot: Slot, values: list[Value]) -> None:
        self.copies.finish()
        slot.seal(values)

    def settle(self) -> None:
        """Waits until the last commit is whole on this rank."""
        if self._pending is not None:
            if not self._pending.done():
                self.copies.hurry()
            self._pending.result()

    def wait(self) -> None:
        """Waits until the last commit is whole on all ranks, which all do.

        Raises:
            RuntimeError: Another rank ended before.
        """
        if self._pending is not None:
            self.settle()
            self._pending = None
            slot, checkpoints = self._newest, self._checkpoints
            assert slot is not None
            is_due = checkpoints is not None and checkpoints.is_due(slot.steps)
            if self._partners is None:
                self._group.meet()
            else:
                self._partners.meet(slot)
            if checkpoints is not None and is_due:
                checkpoints.write(slot)

    def _free_slot(self) -> Slot:
        """That of the generation before the newest; others are emptied."""
        newest = max(self._own.slots, key=lambda each: each.generation)
        taken = [newest]
        if self._checkpoints is not None and self._checkpoints.source:
            taken.append(self._checkpoints.source)
        if self._partners is not None:
            taken += self._partners.taken
        free = [each for each in self._own.slots if each not in taken]
        free.sort(key=lambda each: each.generation)
        *stale, found = free
        for each in stale:
            each.empty()
        return found

    def _usable(self, own: dict[Slot, Image]) -> list[Found]:
        """Generations of which this process has all that it needs."""
        usable = []
        for slot, image in own.items():
            place = self._group.rank, self._group.world
            if (image.rank, image.world) == place:
                images = [image]
            else:
                images = self._of_all(slot.generation, image.world)
            if images:
                found = Found(slot.generation, slot.steps, image, images)
                usable.append(found)
        return usable

    def _of_all(self, number: int, world: int) -> list[Image]:
        """A generation's images of all its ranks; none if one is missing."""
        slots = [
            slot
            for memory in self._memories[:world]
            for slot in memory.slots
            if slot.generation == number
        ]
        images = [image for slot in slots if (image := Image.of(slot))]
        ranks = [(image.rank, image.world) for image in images]
        whole = ranks == [(rank, world) for rank in range(world)]
        return images if whole else []
