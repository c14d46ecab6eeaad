"""The first difference between a native run's records and chameleon's."""

import dataclasses
import re

import torch

# What chameleon alone may say, of settings that cannot be just then.
_ALLOWED = re.compile(
    r"incompatible function arg|out of memory|hbm_budget|host_budget"
    r"|takes chameleon|pinned|is not defined|oversubscription|list op"
)
# One error, told as two types.
_SAME_ERRORS = (
    {"RuntimeError", "NotImplementedError"},
    {"IndexError", "RuntimeError"},
)


@dataclasses.dataclass(frozen=True)
class Difference:
    """How two runs differ.

    Args:
        kind: "bits", "facts", "error", "ours", "device", "memory", and what
            the runner adds: "crash", "hang", "native".
        text: Where, and what both have.
    """

    kind: str
    text: str

    def alike(self, other):
        """Whether it is the same fault, as far as can be told."""
        if other is None or self.kind != other.kind:
            return False
        return self.kind != "crash" or _cause(self.text) == _cause(other.text)


def _cause(text):
    """The line of a crash's output that names it, without numbers."""
    line = re.search(r"chameleon[^\n]*|Segmentation[^\n]*|Fatal[^\n]*", text)
    return re.sub(r"0x[0-9a-f]+|\d+", "#", line.group())[:60] if line else ""


def difference(native, ours):
    """Between records; None where there is none."""
    for row in ours:
        if row[0] == "ours" and not _ALLOWED.search(row[2]):
            return Difference("ours", f"{row[1]}: {row[2]}")
    native = [row for row in native if row[0] != "ours"]
    ours = [row for row in ours if row[0] != "ours"]
    for one, other in zip(native, ours, strict=False):
        if other[0] == "memory":
            return Difference("memory", ": ".join(other[1:]))
        found = _of_records(one, other)
        if found:
            return found
    if len(native) != len(ours):
        return Difference("error", f"{len(native)} and {len(ours)} records")
    return None


def _of_records(one, other):
    if one[0] != other[0] or one[1] != other[1]:
        return Difference(
            "error", f"native {_short(one)}, chameleon {_short(other)}"
        )
    if one[0] == "values":
        return _of_values(one, other)
    if one[3] != other[3] and {one[3], other[3]} not in _SAME_ERRORS:
        return Difference(
            "error", f"{one[1]}: {one[2]}: native {one[3:]}, ours {other[3:]}"
        )
    return None


def _short(record):
    if record[0] == "values":
        return f"raises nothing until {record[1]}"
    return ": ".join(record[1:])[:600]


def _of_values(one, other):
    where = one[1]
    for name, native in one[2].items():
        ours = other[2].get(name)
        if ours is None or len(ours) != len(native):
            return Difference("facts", f"{where}: {name} is not there")
        for (facts, data), (our_facts, our_data) in zip(
            native, ours, strict=True
        ):
            if facts != our_facts:
                keys = [k for k in facts if facts[k] != our_facts.get(k)]
                return Difference(
                    "facts", f"{where}: {name}: {keys}: {facts}, {our_facts}"
                )
            if data != our_data:
                text = _of_bits(facts["dtype"], data, our_data)
                if text:
                    return Difference("bits", f"{where}: {name}: {text}")
    return None


def _of_bits(dtype, one, other):
    """Elements that differ, but for NaNs, whose payloads native varies."""
    dtype = getattr(torch, dtype)
    a, b = (torch.frombuffer(bytearray(d), dtype=dtype) for d in (one, other))
    differs = (
        (a.view(torch.uint8) != b.view(torch.uint8)).view(a.numel(), -1).any(1)
    )
    if dtype.is_complex and dtype.itemsize < 8:
        nans = torch.zeros_like(differs)
    else:
        nans = a.isnan() & b.isnan()
    places = (differs & ~nans).nonzero().flatten()
    if places.numel() == 0:
        return None
    first = places[:4]
    return (
        f"{places.numel()} of {a.numel()} elements at {first.tolist()}: "
        f"{a[first].tolist()} and {b[first].tolist()}"
    )
