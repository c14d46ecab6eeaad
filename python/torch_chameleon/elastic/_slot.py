"""One generation of a rank's state, in memory that has no name."""

import mmap
import os
import zlib
from collections.abc import Callable, Sequence

import torch

from torch_chameleon.elastic._copies import UNKNOWN, Value

_MAGIC = 0x33306E6F656C6D63  # names this layout
_PAGE = 4096
_ALIGNMENT = 64
_ROW = 3  # words of a block in the table: offset, bytes, checksum
# The header's words. The commit word is the generation's number once all else
# is in place, and 0 until then.
(
    _LAYOUT,
    _COMMIT,
    _GENERATION,
    _STEPS,
    _BLOCKS,
    _INDEX_BYTES,
    _CHECKSUM,
    _LIFE,
) = _WORDS = range(8)


class Slot:
    """A memory file that holds one generation, or none.

    A page of header; a table of blocks, each with a checksum; the index, which
    says what the blocks are and is the writer's affair; the blocks. The commit
    word is written last and removed first, so whatever a process leaves when it
    dies is either whole or no generation at all. One process writes at a time.
    """

    def __init__(self, descriptor: int):
        """Maps what is there.

        Args:
            descriptor: The file's, open as long as the slot is used.
        """
        # Called with all of the memory, before it is mapped anew.
        self.before_unmapping: Callable[[torch.Tensor], None] = lambda _: None
        self._descriptor = descriptor
        # What blocks hold, and its checksum, by where they are: since `seal`,
        # and since the one before.
        self._sealed: dict[tuple[int, int], tuple[Value, int]] = {}
        self._before = self._sealed
        size = os.fstat(descriptor).st_size
        if size < _PAGE:
            os.ftruncate(descriptor, _PAGE)
            size = _PAGE
        self._open(size)

    @property
    def generation(self) -> int:
        """The generation that is committed, by its header alone; 0: none."""
        words = self._words
        whole = (
            words[_LAYOUT] == _MAGIC and words[_COMMIT] == words[_GENERATION]
        )
        return words[_COMMIT] if whole else 0

    @property
    def steps(self) -> int:
        """How many steps had been committed, or skipped, with this one."""
        return self._words[_STEPS]

    @property
    def life(self) -> int:
        """Of the training in which it was written, as the writer says."""
        return self._words[_LIFE]

    @property
    def held_bytes(self) -> int:
        """What the file takes of the host's memory."""
        return 512 * os.fstat(self._descriptor).st_blocks

    def begin(
        self,
        generation: int,
        steps: int,
        index: bytes,
        sizes: Sequence[int],
        life: int = 0,
    ) -> tuple[list[torch.Tensor], list[Value]]:
        """Drops what is there and makes room.

        Args:
            generation: The number, above 0.
            steps: What `steps` is from now on.
            index: What the blocks are.
            sizes: Bytes of each block.
            life: What `life` is from now on.

        Returns:
            The blocks, as bytes; the caller fills them and then calls `seal`.
            And the value that each has by now, as that said.
        """
        self.discard()
        sealed, self._sealed = self._sealed, {}
        table_end = _PAGE + 8 * _ROW * len(sizes)
        end = table_end + len(index)
        rows: list[tuple[int, int]] = []
        for size in sizes:
            start = _aligned(end)
            rows.append((start, size))
            end = start + size
        self._resize(_aligned(end))
        words = self._words
        words[_LAYOUT] = _MAGIC
        words[_GENERATION] = generation
        words[_STEPS] = steps
        words[_BLOCKS] = len(rows)
        words[_INDEX_BYTES] = len(index)
        words[_LIFE] = life
        for number, row in enumerate(rows):
            at = self._row(number)
            words[at], words[at + 1] = row
        self._map[table_end : table_end + len(index)] = index
        blocks = [self._bytes[at : at + size] for at, size in rows]
        self._before = sealed
        unknown = UNKNOWN, 0
        return blocks, [sealed.get(row, unknown)[0] for row in rows]

    def seal(self, values: Sequence[Value] = ()) -> None:
        """Computes the checksums of filled blocks; commits.

        Args:
            values: Of all blocks, if they are known. A block that had this
                value before keeps its checksum.
        """
        words = self._words
        for number in range(words[_BLOCKS]):
            at = self._row(number)
            row = words[at], words[at + 1]
            value = values[number] if values else UNKNOWN
            had, checksum = self._before.get(row, (UNKNOWN, 0))
            if value == UNKNOWN or value != had:
                checksum = self._sum(*row)
            words[at + 2] = checksum
            self._sealed[row] = value, checksum
        words[_CHECKSUM] = self._sum_of_head()
        words[_COMMIT] = words[_GENERATION]

    def read(self) -> tuple[bytes, list[torch.Tensor]] | None:
        """The index and the blocks, if all of it is as it was committed.

        Returns:
            None: There is no generation, or it is damaged. The blocks are views
            of this memory, as bytes, good until the next `begin`.
        """
        words, size = self._words, len(self._map)
        if (
            not self.generation
            or words[_BLOCKS] > size
            or words[_INDEX_BYTES] > size
        ):
            return None
        table_end = _PAGE + 8 * _ROW * words[_BLOCKS]
        if table_end + words[_INDEX_BYTES] > size:
            return None
        if words[_CHECKSUM] != self._sum_of_head():
            return None
        blocks = []
        for number in range(words[_BLOCKS]):
            start, length, checksum = self._words[
                self._row(number) : self._row(number) + _ROW
            ]
            if checksum != self._sum(start, length):
                return None
            blocks.append(self._bytes[start : start + length])
        return self._map[table_end : table_end + words[_INDEX_BYTES]], blocks

    @property
    def head(self) -> list[int]:
        """What `receive` has to know of it: as many numbers for any slot."""
        return [len(self._map), *(self._words[at] for at in _WORDS)]

    @property
    def body(self) -> torch.Tensor:
        """All bytes behind the header."""
        return self._bytes[_PAGE:]

    def receive(self, head: Sequence[int]) -> torch.Tensor:
        """Drops what is there and makes room for what another slot has.

        Args:
            head: Of the other one.

        Returns:
            The body, which the caller fills and then calls `received`.
        """
        self.discard()
        self._sealed = self._before = {}
        size, *words = head
        self._resize(size)
        for at in _WORDS:
            self._words[at] = 0 if at == _COMMIT else words[at]
        return self.body

    def received(self) -> None:
        """Commits what was received; who reads it computes its checksums."""
        self._words[_COMMIT] = self._words[_GENERATION]

    def discard(self) -> None:
        """Removes the commit word: there is no generation any more."""
        self._words[_COMMIT] = 0

    def empty(self) -> None:
        """Gives the memory back. No view of it may be used any more."""
        self.discard()
        self._sealed = {}
        self._resize(_PAGE)

    def _open(self, size: int) -> None:
        self._map = mmap.mmap(self._descriptor, size)
        self._view = memoryview(self._map)
        self._words = self._view.cast("Q")
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    def _resize(self, size: int) -> None:
        """To this many bytes; views of what was there must not be used."""
        if size != len(self._map):
            self.before_unmapping(self._bytes)
            os.ftruncate(self._descriptor, size)
            self._open(size)

    def _row(self, number: int) -> int:
        """Where a block's row begins, in words."""
        return _PAGE // 8 + _ROW * number

    def _sum(self, start: int, length: int) -> int:
        return zlib.crc32(self._view[start : start + length])

    def _sum_of_head(self) -> int:
        """Of all that is before the blocks but the two words that are last."""
        words = self._words
        length = 8 * _ROW * words[_BLOCKS] + words[_INDEX_BYTES]
        head = b"".join(
            words[at].to_bytes(8, "little")
            for at in (_GENERATION, _STEPS, _BLOCKS, _INDEX_BYTES, _LIFE)
        )
        return zlib.crc32(self._view[_PAGE : _PAGE + length], zlib.crc32(head))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
