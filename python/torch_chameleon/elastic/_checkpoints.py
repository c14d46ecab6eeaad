"""Generations on disk, for those who have none in memory."""

import logging
import os
import re
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

from torch_chameleon.elastic import _disk, _environment
from torch_chameleon.elastic._found import Found
from torch_chameleon.elastic._group import Group
from torch_chameleon.elastic._image import Image
from torch_chameleon.elastic._ledger import Ledger
from torch_chameleon.elastic._slot import Slot

FOLDER_VARIABLE = "CHAMELEON_CHECKPOINT"
STEPS_VARIABLE = "CHAMELEON_CHECKPOINT_STEPS"
STEPS = 100
_INDEX = "index"
_OF_STEP = re.compile(r"step-(\d+)")
_OF_FIRST = re.compile(r"0-of-(\d+)")  # ranks

_log = logging.getLogger("torch_chameleon.elastic")


class Checkpoints:
    """Every so many steps a generation goes to disk, while the training runs.

    A step's folder has one for each rank, such as `1-of-2`, which PyTorch's
    distributed checkpoints write under another name and which has its own when
    all of it is there. A step counts when those of all ranks are. The last two
    are kept. No thread waits for another rank.
    """

    def __init__(self, folder: Path, every: int, ledger: Ledger, group: Group):
        """Looks what is there.

        Args:
            folder: One that all ranks see, of this training alone.
            every: So many steps.
            ledger: Where figures go.
            group: The ranks.
        """
        self._folder = folder
        self._every = every
        self._ledger = ledger
        self._group = group
        self._last = 0  # steps at the last one that was, or need not be written
        self._slot: Slot | None = None
        self._writing: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, "chameleon elastic checkpoint")
        ledger.measured(checkpoint_steps=max(self._whole(), default=0))

    @property
    def source(self) -> Slot | None:
        """The slot that is being written to disk, which must stay as it is."""
        is_over = self._writing is None or self._writing.done()
        return None if is_over else self._slot

    def is_due(self, steps: int) -> bool:
        """Whether it is the turn; waits for the one before then.

        The same on all ranks, which ask before any of them writes.

        Args:
            steps: How many are done in a generation.
        """
        if steps // self._every <= self._last // self._every:
            return False
        self._last = steps
        if self._writing is not None:
            self._writing.result()
        return steps not in self._whole()

    def write(self, slot: Slot) -> None:
        """Begins to write a generation that all ranks have.

        Args:
            slot: It is there.
        """
        self._slot = slot
        self._writing = self._thread.submit(self._write, slot, slot.steps)

    def newest(self) -> Found | None:
        """The newest one, read from disk. All ranks call it.

        Fewer or more ranks than wrote it read all of it.
        """
        began = time.monotonic()
        own = max(self._whole(), default=0)
        steps = min(said for (said,) in self._group.gather([own]))
        if not steps:
            return None
        rank, world = self._group.rank, self._group.world
        wrote = self._whole()[steps]
        ranks = [rank] if wrote == world else range(wrote)
        images = [_read(self._path(steps, each, wrote)) for each in ranks]
        self._ledger.measured(reading_s=time.monotonic() - began)
        mine = next((each for each in images if each.rank == rank), images[0])
        return Found(0, steps, mine, images)

    def begins(self, steps: int) -> None:
        """Notes where this life begins.

        Args:
            steps: So many it has behind it.
        """
        self._last = steps

    def _write(self, slot: Slot, steps: int) -> None:
        began = time.monotonic()
        target = self._path(steps, self._group.rank, self._group.world)
        draft = target.with_name(f"part-{target.name}")
        try:
            index, blocks = slot.read() or _damaged()
            state = {str(number): block for number, block in enumerate(blocks)}
            state[_INDEX] = torch.frombuffer(
                bytearray(index), dtype=torch.uint8
            )
            shutil.rmtree(draft, ignore_errors=True)
            _disk.save(state, draft)
            shutil.rmtree(target, ignore_errors=True)
            os.rename(draft, target)
            if self._group.rank == 0:
                self._remove_before(steps)
        except Exception as error:  # a full disk is no reason to stop
            _log.warning(
                "chameleon: no checkpoint of step %d: %s", steps, error
            )
            return
        took = time.monotonic() - began
        self._ledger.measured(checkpoint_steps=steps, checkpoint_s=took)

    def _remove_before(self, steps: int) -> None:
        """All but this and the one before, which all ranks have written."""
        older = sorted(each for each in self._steps() if each < steps)
        for each in older[:-1]:
            shutil.rmtree(self._folder / _name(each), ignore_errors=True)

    def _path(self, steps: int, rank: int, world: int) -> Path:
        return self._folder / _name(steps) / f"{rank}-of-{world}"

    def _steps(self) -> list[int]:
        return _numbers(self._folder, _OF_STEP)

    def _whole(self) -> dict[int, int]:
        """Steps that are there of all ranks, and how many those are."""
        whole = {}
        for steps in self._steps():
            for world in _numbers(self._folder / _name(steps), _OF_FIRST):
                paths = (
                    self._path(steps, each, world) for each in range(world)
                )
                if all(path.is_dir() for path in paths):
                    whole[steps] = world
        return whole


def from_environment(ledger: Ledger, group: Group) -> Checkpoints | None:
    """Those that the launcher was told of.

    Args:
        ledger: Where figures go.
        group: The ranks.

    Returns:
        None: It was told of none.

    Raises:
        ValueError: STEPS_VARIABLE is no number of steps.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return None
    every = _environment.steps(STEPS_VARIABLE, STEPS)
    return Checkpoints(Path(folder), every, ledger, group)


def _numbers(folder: Path, pattern: re.Pattern[str]) -> list[int]:
    """What the names in it say that are of a pattern."""
    if not folder.is_dir():
        return []
    found = map(pattern.fullmatch, os.listdir(folder))
    return [int(each[1]) for each in found if each]


def _name(steps: int) -> str:
    return f"step-{steps:08}"


def _damaged() -> tuple[bytes, list[torch.Tensor]]:
    raise ValueError("what is in memory is damaged")


def _read(folder: Path) -> Image:
    tensors = _disk.load(folder)
    index = tensors.pop(_INDEX)
    blocks = [tensors[str(number)] for number in range(len(tensors))]
    return Image(index.numpy().tobytes(), blocks)
