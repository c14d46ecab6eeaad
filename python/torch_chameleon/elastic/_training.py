"""Commits a training's objects, and brings them back."""

import logging
import time
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from torch_chameleon._config import config
from torch_chameleon.elastic import _checkpoints
from torch_chameleon.elastic._generations import Generations
from torch_chameleon.elastic._group import Group
from torch_chameleon.elastic._keeper import Memories
from torch_chameleon.elastic._measuring import Measuring
from torch_chameleon.elastic._partner import partners
from torch_chameleon.elastic._putting_back import Kept, put_back
from torch_chameleon.elastic._random import RandomNumbers
from torch_chameleon.elastic._room import shortage
from torch_chameleon.elastic._situation import Situation
from torch_chameleon.elastic._snapshot import Snapshot

# No names of objects, which are identifiers.
_OWN = _NUMBERS, _RANDOM = "its numbers", "its random numbers"

_STEPS = "its steps"

_log = logging.getLogger("torch_chameleon.elastic")


def is_manager(each: Any) -> bool:
    """Whether it is torchft's, which has the state of others for us.

    Args:
        each: One of the objects.
    """
    return hasattr(each, "register_state_dict_fn")


class Training:
    """Objects and numbers, and the generations in which they are kept."""

    def __init__(self, objects: dict[str, Kept], numbers: dict[str, Any]):
        """Keeps nothing yet.

        Args:
            objects: By name.
            numbers: By name, and as they are now.
        """
        self.objects = objects
        self.numbers = numbers
        self.steps = 0  # committed or skipped, in all lives
        self.generations: Generations | None = None
        self._every = config.mirror_steps
        self._random = RandomNumbers()
        self._checked: set[type] = set()  # can be read again
        for each in objects.values():
            if is_manager(each):
                each.register_state_dict_fn(  # type: ignore[attr-defined]
                    "torch_chameleon", self.take, self.share
                )

    def come_back(self, memories: Memories) -> None:
        """Loads what earlier lives committed, if any; commits go there.

        Args:
            memories: Who keeps them.

        Raises:
            ValueError: An object is not made as it was.
        """
        group = self._group = Group()
        every = {each for (each,) in group.gather([self._every])}
        if len(every) > 1:
            raise ValueError(
                "elastic.State: torch_chameleon.config.mirror_steps must be "
                f"the same on all ranks; it is {sorted(every)}"
            )
        self.memory = memories.own
        seen = memories.all[: group.world]
        self._seen = seen if len(seen) == group.world else [memories.own]
        self.generations = Generations(
            memories,
            group,
            _checkpoints.from_environment(self.memory.ledger, group),
            partners.from_environment(group, self.memory),
        )
        found = self.generations.agree()
        self._measuring = Measuring(self.memory.ledger, group.world)
        if found is None:
            return
        began = time.monotonic()
        self._check_names(found.own.tree)
        kept = {**self.objects}
        if found.own.rank == group.rank:
            kept[_RANDOM] = self._random
        put_back(kept, found.own, found.images)
        self.numbers.update(found.own.tree[_NUMBERS])
        self.steps = found.steps
        self._took(time.monotonic() - began, is_read=not found.number)
        if group.rank == 0:
            _log.warning(
                "chameleon: back, with %d steps done%s",
                found.steps,
                ""
                if group.world == found.own.world
                else f"; ranks: {group.world}, and before {found.own.world}",
            )

    def _check_names(self, tree: dict[str, Any]) -> None:
        """What one life names, and another one does not, would be lost."""
        was = _names([x for x in tree if x not in _OWN], tree[_NUMBERS])
        now = _names(self.objects, self.numbers)
        if was != now:
            raise ValueError(
                f"elastic.State: {was} were committed, and {now} are named; a "
                "script that comes back has to name what it named, and another "
                "training needs a launcher and a checkpoint directory of its "
                "own"
            )

    def _took(self, seconds: float, is_read: bool) -> None:
        """Notes how long objects took to be back, after what was read."""
        ledger = self.memory.ledger
        if is_read:
            ledger.measured(reading_s=ledger.figures.reading_s + seconds)
        else:
            ledger.measured(restore_s=seconds)

    def share(self) -> dict[str, Any]:
        """What a replica that heals gets: all but random numbers.

        It is on the host, for a device may have no room for another one; and a
        copy, for training goes on meanwhile.
        """
        return {
            _STEPS: self.steps,
            _NUMBERS: dict(self.numbers),
            **{
                x: _on_host(self.objects[x].state_dict()) for x in self._alike()
            },
        }

    def take(self, state: dict[str, Any]) -> None:
        """Becomes what another replica is.

        Args:
            state: What it shares.
        """
        for name in self._alike():
            owner = self.objects[name]
            if isinstance(owner, torch.optim.Optimizer):
                owner.state.clear()  # room for what comes in its place
            owner.load_state_dict(state[name])
        self.numbers.update(state[_NUMBERS])
        self.steps = state[_STEPS]
        if self.generations is not None:
            self.memory.ledger.healed(self.steps)

    def _alike(self) -> list[str]:
        """Objects that are alike in all replicas: all but their managers."""
        return [x for x, y in self.objects.items() if not is_manager(y)]

    @property
    def rank(self) -> int:
        """This process's; that of one that nobody keeps is 0."""
        return self._group.rank if self.generations else 0

    @property
    def world(self) -> int:
        """How many ranks there are; nobody keeps more than one alone."""
        return self._group.world if self.generations else 1

    def commit(self) -> None:
        """Commits all, if it is the turn."""
        self.steps += 1
        if self.generations is None:
            return
        is_due = self.steps % self._every == 0
        if is_due:
            self.generations.wait()
        # Not before: of the steps that are done all but one are whole.
        self.memory.ledger.reached = self.steps
        self._measuring.step()
        if not is_due:
            return
        tree = {name: each.state_dict() for name, each in self.objects.items()}
        tree[_NUMBERS] = dict(self.numbers)
        tree[_RANDOM] = self._random.state_dict()
        snapshot = Snapshot(tree, self._group.rank, self._group.world)
        is_first = not self._checked
        if not snapshot.types <= self._checked:
            snapshot.check()
            self._checked |= snapshot.types
        if is_first:
            self._warn_of_shortage(snapshot.copy_bytes)
            self._measuring.is_sharded = snapshot.is_sharded
        self.generations.commit(snapshot, self.steps)

    def _warn_of_shortage(self, copy_bytes: int) -> None:
        """Once, before the host is short of memory."""
        assert self.generations is not None
        if self._seen[0] is self.memory:  # one says it for all
            said = shortage(
                self._seen, copy_bytes, self.generations.most_copies
            )
            if said:
                _log.warning("chameleon: %s", said)

    def situation(self) -> Situation:
        """Where it is, as a launcher sees it when it fails."""
        self._measuring.model()
        return Situation.of(self._seen, self._group.world)


def _names(objects: Iterable[str], numbers: Iterable[str]) -> str:
    """In any order, and which of them are numbers."""
    return ", ".join(sorted([*objects, *(f"{x} (a number)" for x in numbers)]))


def _on_host(state: dict[str, Any]) -> dict[str, Any]:
    """A copy of a state_dict, on the host."""
    copy: dict[str, Any] = tree_map_only(
        torch.Tensor, lambda x: x.detach().to("cpu", copy=True), state
    )
    if hasattr(state, "_metadata"):  # a module's versions
        copy._metadata = state._metadata  # type: ignore[attr-defined]
    return copy
