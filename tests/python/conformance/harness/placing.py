"""Copies of samples on a device: the same strides, offsets and aliasing."""

import torch
from torch.utils._pytree import tree_map


class Placer:
    """Copies trees of CPU tensors to a device; one storage stays one storage.

    A copy has the bytes of the whole storage, gaps included. Tensors of other
    devices stay.
    """

    def __init__(self, device):
        self.device = device
        self._bases = {}

    def __call__(self, tree):
        return tree_map(self._place, tree)

    def _place(self, leaf):
        if isinstance(leaf, torch.Tensor):
            return self.tensor(leaf)
        if isinstance(leaf, str) and leaf == "cpu":
            return self.device
        if isinstance(leaf, torch.device) and leaf.type == "cpu":
            return torch.device(self.device)
        return leaf

    def tensor(self, source):
        if source.device.type != "cpu":
            return source
        if source.layout != torch.strided or source.is_quantized:
            return self._whole(source)
        plain = source.detach()
        conjugated, negated = plain.is_conj(), plain.is_neg()
        if conjugated:
            plain = plain.conj()
        if negated:
            plain = torch._neg_view(plain)
        with torch.no_grad():
            copy = torch.empty(0, dtype=plain.dtype, device=self.device)
            copy.set_(
                self._base(plain),
                plain.storage_offset(),
                plain.size(),
                plain.stride(),
            )
            if conjugated:
                copy = copy.conj()
            if negated:
                copy = torch._neg_view(copy)
        if isinstance(source, torch.nn.Parameter):
            return torch.nn.Parameter(copy, source.requires_grad)
        return copy.requires_grad_(source.requires_grad)

    def _base(self, plain):
        storage = plain.untyped_storage()
        base = self._bases.get(storage._cdata)
        if base is None:
            bytes_ = torch.empty(0, dtype=torch.uint8).set_(storage)
            base = torch.empty_like(bytes_, device=self.device).copy_(bytes_)
            base = base.untyped_storage()
            # The source is kept too: its address must stay its own.
            self._bases[storage._cdata] = base, storage
            return base
        return base[0]

    def _whole(self, source):
        copy = source.detach().to(self.device, copy=True)
        return copy.requires_grad_(source.requires_grad)
