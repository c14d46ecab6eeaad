"""What a training is made of, at one moment: an index, and tensors."""

import io
from typing import Any

import torch

from torch_chameleon.elastic._pieces import Path, Piece, name_of


class Snapshot:
    """A tree of dicts and lists whose tensors stand apart from all else.

    The index has the tree without tensors, the pieces, and which rank of how
    many made it. It is bytes from the beginning, so what becomes of the tree
    does not matter. The tensors are the training's own and change with it.
    """

    def __init__(self, tree: dict[str, Any], rank: int, world: int):
        """Takes a tree apart.

        Args:
            tree: What `state_dict`s returned.
            rank: Of this process.
            world: How many there are.

        Raises:
            TypeError: A tensor of it cannot be kept.
        """
        self.tensors: list[torch.Tensor] = []
        self.types: set[type] = set()  # of what the index has
        self._pieces: list[Piece] = []
        self._rest = self._without_tensors(tree, ())
        pieces = [tuple(piece) for piece in self._pieces]
        try:
            self.index = _as_bytes((rank, world, pieces, self._rest))
        except Exception:  # whatever a stranger's class makes of it
            self._refuse()
            raise

    @property
    def is_sharded(self) -> bool:
        """Whether this rank has but a part of some tensor."""
        return any(piece.is_sharded for piece in self._pieces)

    @property
    def copy_bytes(self) -> int:
        """What its tensors are together."""
        return sum(each.numel() * each.itemsize for each in self.tensors)

    def check(self) -> None:
        """Tries whether the index can be read again.

        Raises:
            TypeError: Something in the tree is not plain data.
        """
        if not _is_data(self.index):
            self._refuse()

    def _refuse(self) -> None:
        """Says what cannot be kept."""
        for path, value in _leaves(self._rest, ()):
            if not _can_be_kept(value):
                raise TypeError(
                    f"elastic.State: {name_of(path)} is a "
                    f"{type(value).__name__}; a state_dict() can be kept if it "
                    "has tensors, numbers, text, and dicts and lists of them"
                )

    def _without_tensors(self, value: Any, path: Path) -> Any:
        if isinstance(value, torch.Tensor):
            piece, tensor = Piece.of(path, value)
            self._pieces.append(piece)
            self.tensors.append(tensor)
            return None
        if isinstance(value, dict):
            self.types.update(*map(_types, value))
            return {
                key: self._without_tensors(each, (*path, key))
                for key, each in value.items()
            }
        if type(value) is list:
            return [
                self._without_tensors(each, (*path, number))
                for number, each in enumerate(value)
            ]
        self.types |= _types(value)
        return value


def _types(value: Any) -> set[type]:
    """That of a value, and of what a tuple has."""
    found = {type(value)}
    if isinstance(value, tuple):
        found.update(*map(_types, value))
    return found


def _leaves(tree: Any, path: Path) -> list[tuple[Path, Any]]:
    if isinstance(tree, dict):
        parts = list(tree.items())
    elif type(tree) is list:
        parts = list(enumerate(tree))
    else:
        return [(path, tree)]
    keys = [((*path, key), key) for key, _ in parts]
    return keys + [
        leaf for key, part in parts for leaf in _leaves(part, (*path, key))
    ]


def _as_bytes(index: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(index, buffer)
    return buffer.getvalue()


def _can_be_kept(value: Any) -> bool:
    try:
        return _is_data(_as_bytes(value))
    except Exception:  # whatever a stranger's class makes of it
        return False


def _is_data(index: bytes) -> bool:
    try:
        torch.load(io.BytesIO(index), weights_only=True)
    except Exception:  # whatever a stranger's class makes of it
        return False
    return True
