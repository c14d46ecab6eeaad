"""Samples of PyTorch's databases as things to run, on any device."""

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.utils._pytree import tree_flatten, tree_map

from conformance.harness.samples import samples_of

# Entries of op_db that cannot run, or not with the same meaning.
LEFT_OUT = {
    "tensor_split": "its samples put indices on the device; they must be CPU",
}


# Entries whose kernels call others.
OTHER_KERNELS = {
    "to_sparse": "PyTorch makes a sparse tensor with empty parts, each a call "
    "of aten::empty, before it gets its own: here the device's one, too",
}


def moved_to(device):
    """A function that copies tensors to a device, strides included."""

    def move(value):
        if isinstance(value, torch.device) and value.type == "cpu":
            return torch.device(device)
        if isinstance(value, str) and value == "cpu":
            return device
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
            return value
        source = value.detach()
        flat = torch.empty(0, dtype=source.dtype)
        flat.set_(source.untyped_storage())
        copied = flat.to(device, copy=True).as_strided(
            source.size(), source.stride(), source.storage_offset()
        )
        copied = copied.conj() if source.is_conj() else copied
        copied = copied._neg_view() if source.is_neg() else copied
        return copied.requires_grad_(value.requires_grad)

    return move


def tensors_in(tree):
    return [
        leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)
    ]


def is_dense(tree):
    return all(leaf.layout is torch.strided for leaf in tensors_in(tree))


def _backward(results, sources):
    roots = [
        (result.abs() if result.is_complex() else result).sum()
        for result in tensors_in(results)
        if result.requires_grad
    ]
    if roots and sources:
        torch.autograd.grad(roots, sources, allow_unused=True)


class OpCase:
    """One sample of an entry of op_db: forward and backward."""

    def __init__(self, op, dtype, sample):
        self.name, self.dtype = op.formatted_name, dtype
        self._op, self._sample = op, sample

    def on(self, device):
        """Makes ready; returns what to run."""
        sample = self._sample
        given, args, kwargs = tree_map(
            moved_to(device), (sample.input, sample.args, sample.kwargs)
        )
        if "device" in kwargs:
            kwargs["device"] = device
        sources = [
            leaf
            for leaf in tensors_in((given, args, kwargs))
            if leaf.requires_grad
        ]
        torch.manual_seed(0)
        return lambda: _backward(self._op(given, *args, **kwargs), sources)


class ModuleCase:
    """One sample of an entry of module_db: forward and backward."""

    def __init__(self, info, dtype, sample, training):
        self.name, self.dtype = info.name, dtype
        self._info, self._sample, self._training = info, sample, training

    def on(self, device):
        """Makes ready; returns what to run."""
        construct, forward = (
            self._sample.constructor_input,
            self._sample.forward_input,
        )
        torch.manual_seed(0)
        module = self._info.module_cls(*construct.args, **construct.kwargs)
        module.train(self._training).to(device, self.dtype)
        args, kwargs = tree_map(
            moved_to(device), (forward.args, forward.kwargs)
        )
        sources = [
            leaf
            for leaf in (*module.parameters(), *tensors_in((args, kwargs)))
            if leaf.requires_grad
        ]
        torch.manual_seed(0)
        return lambda: _backward(module(*args, **kwargs), sources)


def dtype_of(op):
    """The dtype to take when one must do."""
    if torch.float32 in op.dtypes:
        return torch.float32
    return min(op.dtypes, key=str)


def op_entries(level="ops"):
    left_out = {**LEFT_OUT, **(OTHER_KERNELS if level == "kernels" else {})}
    return [op for op in op_db if op.dtypes and op.name not in left_out]


def op_cases(op, dtype, limit=None):
    grad = dtype in op.supported_backward_dtypes("cpu")
    samples = samples_of(op, dtype, requires_grad=grad)
    return [
        OpCase(op, dtype, sample)
        for _, sample in zip(range(limit or 1 << 30), samples, strict=False)
        if is_dense((sample.input, sample.args, sample.kwargs))
    ]


def module_cases(info, dtype, limit=None):
    cases = []
    for training in (True, False):
        samples = info.module_inputs_func(
            info,
            device="cpu",
            dtype=dtype,
            requires_grad=True,
            training=training,
        )
        cases += [
            ModuleCase(info, dtype, sample, training)
            for sample in samples[:limit]
            if is_dense(
                (sample.forward_input.args, sample.forward_input.kwargs)
            )
        ]
    return cases


__all__ = ["module_db", "op_db"]
