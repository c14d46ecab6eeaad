"""What a tensor was before it moved, so that it can be moved back.

Used by module_to. Bytes are not kept: a storage is held weakly, and if
nothing else keeps it alive, moving back copies the bytes into a new one.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


class Origin(Protocol):
    """Gives back the data of one tensor."""

    def restore(self, moved: Tensor) -> Tensor:
        """Returns the data as it was; `moved` has the same values."""


class _Kept:
    """The original itself, for conversions that lose something."""

    def __init__(self, tensor: Tensor) -> None:
        self._data = tensor.detach()

    def restore(self, moved: Tensor) -> Tensor:
        return self._data


class _Opaque:
    """A tensor without a storage of its own, such as a sparse one."""

    def __init__(self, tensor: Tensor) -> None:
        self._device = tensor.device

    def restore(self, moved: Tensor) -> Tensor:
        return moved.detach().to(self._device)


class _Strided:
    """A view of a storage, where nothing else of the model shares it."""

    def __init__(self, tensor: Tensor) -> None:
        self._view = View(tensor)
        self._storage = StorageWeakRef(tensor.untyped_storage())

    def restore(self, moved: Tensor) -> Tensor:
        storage = alive(self._storage)
        if storage is not None:
            return self._view.of(storage)
        data = torch.empty_strided(
            self._view.size,
            self._view.stride,
            dtype=self._view.dtype,
            device=self._view.device,
        )
        return data.copy_(moved.detach())


class View:
    """How a tensor looks at its storage."""

    def __init__(self, tensor: Tensor) -> None:
        self.device, self.dtype = tensor.device, tensor.dtype
        self.size, self.stride = tensor.size(), tensor.stride()
        self.offset = tensor.storage_offset()

    def of(self, storage: torch.UntypedStorage) -> Tensor:
        """The same look at another storage."""
        data = torch.empty(0, dtype=self.dtype, device=storage.device)
        return data.set_(storage, self.offset, self.size, self.stride)


def alive(weak: StorageWeakRef) -> torch.UntypedStorage | None:
    """The storage, if anything still holds it."""
    return torch.UntypedStorage._new_with_weak_ptr(weak.cdata)


def origin_of(tensor: Tensor, keep: bool) -> Origin:
    """Describes a tensor before its data is replaced.

    Args:
        tensor: The tensor; lazy modules' uninitialized parameters too.
        keep: Keep the data itself, because the values cannot be copied back.
    """
    # Uninitialized parameters refuse most functions at the subclass level.
    with torch._C.DisableTorchFunctionSubclass():
        if keep:
            return _Kept(tensor)
        if tensor.layout != torch.strided:
            return _Opaque(tensor)
        return _Strided(tensor)


class SharedStorage:
    """A storage that several tensors of a model look at, and its move.

    They share one storage afterwards too, in both directions.
    """

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage = StorageWeakRef(storage)
        self._device = storage.device
        self._moved: Tensor | None = None  # all bytes, where they are now
        self._restored: torch.UntypedStorage | None = None

    @staticmethod
    def bytes_of(storage: torch.UntypedStorage) -> Tensor:
        """All bytes of a storage as one flat tensor."""
        data = torch.empty(0, dtype=torch.uint8, device=storage.device)
        return data.set_(storage, 0, (storage.nbytes(),), (1,))

    def moved_to(self, data: Tensor) -> None:
        """Tells where the bytes are now."""
        self._moved = data

    def moved_storage(self) -> torch.UntypedStorage | None:
        """The storage after the move, None before."""
        return None if self._moved is None else self._moved.untyped_storage()

    def origin_of(self, tensor: Tensor) -> Origin:
        """Describes one of the tensors."""
        return _SharedOrigin(self, View(tensor))

    def restored_storage(self) -> torch.UntypedStorage:
        """The storage before the move: itself, or one copy of it."""
        if self._restored is None:
            self._restored = alive(self._storage)
        if self._restored is None:
            assert self._moved is not None
            moved_back = self._moved.to(self._device)
            self._restored = moved_back.untyped_storage()
        return self._restored


class _SharedOrigin:
    """A view of a `SharedStorage`."""

    def __init__(self, shared: SharedStorage, view: View) -> None:
        self._shared, self._view = shared, view

    def restore(self, moved: Tensor) -> Tensor:
        return self._view.of(self._shared.restored_storage())
