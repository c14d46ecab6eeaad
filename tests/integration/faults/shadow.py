"""Every op on chameleon tensors runs once more on ordinary ones.

So after each op, also one that raised, what every tensor has to hold is known,
bit for bit. Only what an op was writing when it raised is undefined.
"""

import torch
from support import same_bits
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only
from torch_chameleon import _testing

_BROKEN_RUN = "the list ops after it did not take place"
_KEPT_RUN = "is tried again before the next op"


def _key(tensor):
    return tensor.untyped_storage()._cdata


class Shadow(TorchDispatchMode):
    """Shadows tensors that are made, or announced by `adopt`, meanwhile.

    Attributes:
        alive: Each third result, kept alive to be looked at in the end.
        undefined: Storages that an op was writing when it raised.
    """

    def __init__(self):
        super().__init__()
        self.alive = []
        self.undefined = set()
        self._bytes = {}  # storage -> a uint8 tensor on the CPU
        self._listed = set()  # storages that list ops wrote
        self._count = 0
        self._raised_in_op = False

    def adopt(self, tensor):
        """The tensor holds the right bits now."""
        data = tensor.detach().cpu()
        if tensor.is_contiguous() and tensor.storage_offset() == 0:
            storage = data.untyped_storage()
            assert storage.nbytes() == tensor.untyped_storage().nbytes()
            self._bytes[_key(tensor)] = storage
        else:
            raise AssertionError("a view is announced by its base")

    def of(self, tensor):
        """What a tensor has to hold, on the CPU."""
        blank = torch.empty(0, dtype=tensor.dtype)
        return blank.set_(
            self._bytes[_key(tensor)],
            tensor.storage_offset(),
            tensor.size(),
            tensor.stride(),
        )

    def restore(self, tensors):
        """Gives undefined tensors the bits that they had before.

        Results of list ops that did not take place raise; no op takes them.
        """
        for tensor in tensors:
            if _key(tensor) in self.undefined:
                try:
                    tensor.detach().copy_(self.of(tensor))
                except RuntimeError as error:
                    if "list op that did not take place" not in str(error):
                        raise
                    key = _key(tensor)
                    self.alive = [t for t in self.alive if _key(t) != key]
                self.undefined.discard(_key(tensor))

    def wrong(self, tensors):
        """How many tensors hold other bits."""
        return sum(
            not same_bits(tensor, self.of(tensor))
            for tensor in tensors
            if _key(tensor) not in self.undefined
        )

    def __enter__(self):
        self._raised_in_op = False
        return super().__enter__()

    def __exit__(self, kind, error, trace):
        # What was deferred may fail where no op is: at the end of a step.
        is_outside = error is not None and not self._raised_in_op
        if is_outside and _KEPT_RUN not in str(error):
            self.undefined |= self._listed
        super().__exit__(kind, error, trace)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        ours = [
            leaf
            for leaf in tree_flatten((args, kwargs))[0]
            if isinstance(leaf, torch.Tensor) and leaf.is_chameleon
        ]
        written = [_key(tensor) for tensor in self._written(func, args, kwargs)]
        put_off = _testing.deferred_op_count()
        try:
            result = func(*args, **kwargs)
        except RuntimeError as error:
            self._raised_in_op = True
            # What kernels in Python raise (emulated CUDA) has no room for it.
            is_dropped = put_off > 0 and _testing.deferred_op_count() == 0
            if _BROKEN_RUN in str(error) or is_dropped:
                self.undefined |= self._listed
            if _KEPT_RUN not in str(error):
                self.undefined.update(written)
            raise
        made = [
            leaf
            for leaf in tree_flatten(result)[0]
            if isinstance(leaf, torch.Tensor) and leaf.is_chameleon
        ]
        if not ours and not made:
            return result
        known = {_key(tensor) for tensor in ours}
        expected = func(
            *tree_map_only(torch.Tensor, self._shadow, args),
            **tree_map_only(torch.Tensor, self._shadow, self._on_cpu(kwargs)),
        )
        expected = [
            leaf
            for leaf in tree_flatten(expected)[0]
            if isinstance(leaf, torch.Tensor)
        ]
        for tensor, twin in zip(made, expected, strict=False):
            if _key(tensor) in known:
                continue
            self._bytes[_key(tensor)] = twin.untyped_storage()
            self.undefined.discard(_key(tensor))
            self._listed.discard(_key(tensor))
            self._count += 1
            # Bytes are a kernel's workspace (oneDNN's LSTM), written in part.
            if self._count % 3 == 0 and tensor.dtype != torch.uint8:
                self.alive.append(tensor.detach())
        if func.overloadpacket.__name__.startswith("_foreach"):
            self._listed.update(written)
            self._listed.update(_key(tensor) for tensor in made)
        return result

    def _shadow(self, tensor):
        return self.of(tensor) if tensor.is_chameleon else tensor

    @staticmethod
    def _on_cpu(kwargs):
        device = kwargs.get("device")
        if device is None or torch.device(device).type == "cpu":
            return kwargs
        return {**kwargs, "device": torch.device("cpu")}

    @staticmethod
    def _written(func, args, kwargs):
        for index, argument in enumerate(func._schema.arguments):
            announced = argument.alias_info is not None and (
                argument.alias_info.is_write
            )
            # Batch norm writes these, whatever its schema says.
            if not announced and not argument.name.startswith("running_"):
                continue
            if index < len(args):
                value = args[index]
            else:
                value = kwargs.get(argument.name)
            for leaf in tree_flatten(value)[0]:
                if isinstance(leaf, torch.Tensor) and leaf.is_chameleon:
                    yield leaf
