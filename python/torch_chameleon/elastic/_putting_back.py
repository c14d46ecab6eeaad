"""Brings objects to what images of them say."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Protocol

import torch

from torch_chameleon.elastic._filling import fill
from torch_chameleon.elastic._image import Image
from torch_chameleon.elastic._pieces import Path, Piece, is_sharded, name_of


class Kept(Protocol):
    """What `State` keeps."""

    def state_dict(self) -> dict[str, Any]:
        """What it is."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Makes it so."""


_NOTHING = "no tensor"
_AS_BEFORE = "a script that comes back has to make what it made before"


def put_back(
    objects: dict[str, Kept], own: Image, images: Iterable[Image]
) -> None:
    """Loads each object's state.

    Values go from the keeper's memory straight to where they belong: into the
    tensors that modules have, and for all else into new ones on the device
    where the old ones were.

    Args:
        objects: By the names under which they stand in the tree.
        own: The image that has what is no tensor.
        images: Those that have all values; of other ranks, too, where the
            number of ranks changed. What several have is taken from its own.

    Raises:
        ValueError: An object is not made as it was when it was committed.
        RuntimeError: The images have not all values.
    """
    pieces: dict[str, list[Piece]] = {name: [] for name in own.tree}
    for piece in own.pieces:
        pieces[str(piece.path[0])].append(piece)
    states = {
        name: _of_module(name, each, own.tree[name], pieces[name])
        if isinstance(each, torch.nn.Module)
        else _of_others(name, each, own.tree[name], pieces[name])
        for name, each in objects.items()
    }
    targets = {
        piece.key: _at(states[name], piece.path[1:])
        for name in objects
        for piece in pieces[name]
    }
    fill(targets, chain([own], images))
    for name, each in objects.items():
        each.load_state_dict(states[name])


def _of_module(
    name: str,
    module: torch.nn.Module,
    tree: dict[str, Any],
    pieces: list[Piece],
) -> dict[str, Any]:
    """A module's state_dict, which has its own tensors."""
    state = module.state_dict()
    saved = {
        str(piece.path[1]): _named(piece.size, piece.dtype) for piece in pieces
    }
    there = {
        key: _named(each.shape, each.dtype)
        for key, each in state.items()
        if isinstance(each, torch.Tensor)
    }
    for key in sorted(saved.keys() | there.keys()):
        was, now = saved.get(key, _NOTHING), there.get(key, _NOTHING)
        if was != now:
            raise ValueError(
                f"elastic.State: {name}.{key} was {was} when it was "
                f"committed, and is {now}; {_AS_BEFORE}"
            )
    for key in state.keys() - there.keys():
        state[key] = tree[key]
    return state


def _named(size: Sequence[int], dtype: torch.dtype) -> str:
    return f"{tuple(size)} of {dtype}"


def _of_others(
    name: str, owner: Kept, tree: dict[str, Any], pieces: list[Piece]
) -> dict[str, Any]:
    """The state that was committed, with new tensors."""
    if isinstance(owner, torch.optim.Optimizer):
        _check_options(name, owner, tree)
    parameters = _parameters(owner)
    for piece in pieces:
        *way, last = piece.path[1:]
        made = _new(piece, parameters.get(piece.path[1:3]))
        _at(tree, tuple(way))[last] = made
    return tree


def _check_options(
    name: str, optimizer: torch.optim.Optimizer, tree: dict[str, Any]
) -> None:
    """An optimizer of another kind would take the state, and not use it.

    Options are added while it trains, and stay.
    """
    groups = tree.get("param_groups", [])
    for number, (there, saved) in enumerate(
        zip(optimizer.param_groups, groups, strict=False)
    ):
        for option in sorted(there.keys() - saved.keys()):
            raise ValueError(
                f"elastic.State: {name} is {type(optimizer).__name__}, "
                f"whose group {number} has the option {option!a}; what was "
                f"committed had {', '.join(sorted(saved))}; {_AS_BEFORE}"
            )


def _parameters(owner: Kept) -> dict[Path, torch.Tensor]:
    """An optimizer's, by where its state has what belongs to them."""
    if not isinstance(owner, torch.optim.Optimizer):
        return {}
    every = [each for group in owner.param_groups for each in group["params"]]
    return {("state", number): each for number, each in enumerate(every)}


def _new(piece: Piece, parameter: torch.Tensor | None) -> torch.Tensor:
    """A tensor for a piece's values, sharded as the parameter is."""
    if is_sharded(parameter) and tuple(parameter.shape) == piece.size:
        from torch.distributed import tensor

        return tensor.empty(
            piece.size,
            dtype=piece.dtype,
            device_mesh=parameter.device_mesh,
            placements=parameter.placements,
        )
    if piece.is_sharded and parameter is None:
        raise ValueError(
            f"elastic.State: {name_of(piece.path)} is sharded, which only "
            "modules' and optimizers' tensors can be"
        )
    made = torch.empty(piece.size, dtype=piece.dtype, device=piece.device)
    if _fills_its_memory(piece):
        made = made.as_strided(piece.size, piece.stride)
    return made


def _fills_its_memory(piece: Piece) -> bool:
    """Whether there is a stride, by which no element is at another's place."""
    if piece.is_sharded or not piece.stride:
        return False
    far = sum(
        (length - 1) * step
        for length, step in zip(piece.size, piece.stride, strict=True)
    )
    return far + 1 == torch.Size(piece.size).numel()


def _at(tree: Any, path: Path) -> Any:
    for key in path:
        tree = tree[key]
    return tree
