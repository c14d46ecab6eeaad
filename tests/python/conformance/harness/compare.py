"""What an action left behind, and how two of them differ.

An action is a function of a device that returns a tree. What is observed:
for each tensor its bits, dtype, shape, strides, offset, storage size, conj and
neg bits, version counter, whether it requires grad, whether it is on the
device, and which other tensors share its storage; all other leaves; warnings;
or the exception.
"""

import dataclasses
import re
import warnings

import torch
from torch.utils._pytree import tree_flatten
from torch_chameleon import _C, _testing

# Not once a process: both devices must warn.
torch.set_warn_always(True)
torch.storage._set_always_warn_typed_storage_removal(True)


@dataclasses.dataclass
class Seen:
    """One tensor, on the host."""

    facts: dict
    bits: torch.Tensor  # contiguous bytes
    values: torch.Tensor  # the same in its own dtype


@dataclasses.dataclass
class Outcome:
    """What an action returned or raised."""

    leaves: list
    structure: object
    warnings: set  # how often one comes says nothing: most come once
    error: Exception | None = None


def observe(action, device):
    """Runs an action; out-of-memory errors pass through."""
    # Chameleon draws from the CPU's generator. (torch.manual_seed() also keeps
    # a stack trace for CUDA's.)
    torch.default_generator.manual_seed(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            tree = action(device)
            error = None
            if device == "chameleon":
                # While its tensors live: host copies that are said to be
                # clean must equal the device's bytes.
                _C.check_invariants(0, 3)
                _testing.drop_all()  # reading brings back what was recorded
                _C.check_invariants(0, 3)
        except torch.OutOfMemoryError:
            raise
        except Exception as raised:
            # The traceback would keep the action's tensors.
            tree, error = None, raised.with_traceback(None)
            error.__context__ = error.__cause__ = None
    leaves, structure = tree_flatten(tree)
    storages = {}
    return Outcome(
        [_leaf(leaf, storages) for leaf in leaves],
        structure,
        {(w.category.__name__, anonymous(str(w.message))) for w in caught},
        error,
    )


def anonymous(text):
    """A message without device names, addresses, and places in sources."""
    text = text.replace("torch.chameleon.", "torch.")  # a type: FloatTensor
    text = re.sub(r"torch\.(\w+)Tensor\b|chameleon(\w+)Type\b", r"\1\2", text)
    text = re.sub(r"\bCPU([A-Z]\w+)Type\b", r"\1", text)
    text = re.sub(r", device='chameleon:0'", "", text)  # a printed tensor
    text = re.sub(r"(chameleon|CPU)(?=[A-Z]\w+Type)", "<device>", text)
    text = re.sub(
        r"chameleon(:0)?|\bcpu\b|privateuseone(:0)?", "<device>", text
    )
    text = re.sub(r"\(Triggered internally at [^)]*\)", "", text)
    text = re.sub(r"/pytorch/\S+:\d+: ", "", text)
    text = re.sub(r"\bj\d+\b", "<ragged>", text)  # a nested tensor's size
    text = re.sub(r"PrivateUse1|\bCPU\b", "<DEVICE>", text)
    return re.sub(r"0x[0-9a-f]+", "<address>", text)


def _leaf(leaf, storages):
    if isinstance(leaf, torch.Tensor):
        return _seen(leaf, storages)
    if isinstance(leaf, (torch.device, str)):
        return anonymous(str(leaf))
    return leaf


def _seen(tensor, storages):
    facts = {
        "dtype": tensor.dtype,
        "shape": tuple(tensor.shape),
        "layout": tensor.layout,
        "requires_grad": tensor.requires_grad,
        "version": None if tensor.is_inference() else tensor._version,
        "device": tensor.device.type in ("chameleon", "cpu"),
        "class": type(tensor),
    }
    plain = tensor.detach()
    if plain.layout == torch.strided:
        storage = plain.untyped_storage()
        facts |= {
            "strides": plain.stride(),
            "offset": plain.storage_offset(),
            "storage bytes": storage.nbytes(),
            "conj": plain.is_conj(),
            "neg": plain.is_neg(),
            # The first tensor that has the same storage.
            "storage": storages.setdefault(storage._cdata, len(storages)),
        }
        if plain.is_conj():
            plain = plain.conj()
        if plain.is_neg():
            plain = torch._neg_view(plain)
    values = packed(plain)
    return Seen(facts, values.view(torch.uint8), values)


def packed(tensor):
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        if tensor.dtype == torch.complex32:  # which to_dense() does not take
            tensor = tensor.to(torch.complex64)
        tensor = tensor.to_dense()
    host = tensor.cpu()
    packed = torch.empty(host.numel(), dtype=host.dtype)
    packed.view(host.shape).copy_(host)
    return packed


def difference(native, ours, values=True):
    """Says in a line how two outcomes differ; None where they agree.

    Args:
        native: The native device's outcome.
        ours: The chameleon device's.
        values: False where memory is uninitialised: all but bits.
    """
    if native.error or ours.error:
        return _error_difference(native.error, ours.error)
    if native.structure != ours.structure:
        return f"structure: {native.structure} and {ours.structure}"
    for i, (one, other) in enumerate(
        zip(native.leaves, ours.leaves, strict=True)
    ):
        found = _leaf_difference(one, other, values)
        if found:
            return f"leaf {i}: {found}"
    if native.warnings != ours.warnings:
        return (
            f"warnings: only native {native.warnings - ours.warnings}, "
            f"only chameleon {ours.warnings - native.warnings}"
        )
    return None


def _error_difference(native, ours):
    def name(error):
        return f"{type(error).__name__}: {str(error)[:300]}"

    if native is None:
        return f"only chameleon raised {name(ours)}"
    if ours is None:
        return f"only native raised {name(native)}"
    if type(native) is not type(ours):
        return f"raised {name(native)} and {name(ours)}"
    if isinstance(native, RecursionError):
        return None  # its text says where in the interpreter the stack ended
    if anonymous(str(native)) != anonymous(str(ours)):
        return f"messages: {name(native)} and {name(ours)}"
    if re.search(r"\bcpu\b", str(ours)) and "chameleon" not in str(ours):
        return f"message names the cpu: {name(ours)}"
    return None


def _leaf_difference(native, ours, values):
    if not isinstance(native, Seen):
        if type(native) is not type(ours):
            return f"type: {type(native)} and {type(ours)}"
        same = native == ours or (native != native and ours != ours)
        return None if same else f"value: {native} and {ours}"
    if not isinstance(ours, Seen):
        return f"type: a tensor and {type(ours)}"
    for fact, value in native.facts.items():
        other = ours.facts.get(fact)
        if value != other:
            return f"{fact}: {value} and {other}"
    if not values or torch.equal(native.bits, ours.bits):
        return None
    if only_nans_differ(native, ours):
        return "bits: NaN payloads"
    return _worst(native, ours)


def only_nans_differ(native, ours):
    if (
        not native.values.dtype.is_floating_point
        | native.values.dtype.is_complex
    ):
        return False
    one, other = _real(native.values), _real(ours.values)
    nans = one.isnan()
    if not torch.equal(nans, other.isnan()):
        return False
    return torch.equal(
        one.masked_fill(nans, 0).view(torch.uint8),
        other.masked_fill(nans, 0).view(torch.uint8),
    )


def _real(values):
    if values.dtype == torch.complex32:
        return values.view(torch.float16)
    if values.dtype.is_complex:
        return torch.view_as_real(values)
    if values.dtype.itemsize == 1:
        return values.float()
    return values


def _worst(native, ours):
    size = native.values.element_size()
    rows = native.bits.view(-1, size) != ours.bits.view(-1, size)
    where = rows.any(1).nonzero().flatten()
    first = int(where[0])
    return (
        f"bits: {len(where)} of {len(rows)} elements, first at {first}: "
        f"{native.values[first].item()} and {ours.values[first].item()}"
    )
