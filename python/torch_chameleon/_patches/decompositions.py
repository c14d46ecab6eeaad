"""torch.compile and torch.export take composites apart as they do on the CPU.

A few ops have a decomposition in Python that tracing prefers to the composite
in C++. For a device that has a kernel in the composite's place, tracing would
take that kernel, and graphs would not be those of other devices: a dropout
drew its numbers in another order.
"""

from typing import Any

import torch
from torch._C import DispatchKey

from torch_chameleon._patches.after_import import after_import

_COMPOSITE = DispatchKey.CompositeImplicitAutograd


def _prefer_decompositions(_: Any) -> None:
    keys = DispatchKey.AutogradPrivateUse1, DispatchKey.PrivateUse1
    for name in torch._C._dispatch_get_registrations_for_dispatch_key(
        keys[0].name
    ):
        namespace, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        packet = getattr(getattr(torch.ops, namespace), base)
        op = getattr(packet, overload or "default")
        if _COMPOSITE in op.py_kernels:
            for key in keys:
                op.py_impl(key)(op.py_kernels[_COMPOSITE])


def install() -> None:
    """Now, or when torch's decompositions are imported; once a process."""
    after_import("torch._decomp.decompositions", _prefer_decompositions)
