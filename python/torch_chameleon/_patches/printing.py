"""Tensors are printed with line breaks where CUDA's have them.

Torch breaks the line before what does not fit, and the name of this device is
longer than "cuda": texts that are compared with CUDA's would differ in breaks.
"""

import functools
from typing import Any

from torch import _tensor_str

_OURS = "device='chameleon"
_CUDA = "device='cuda"


def install() -> None:
    """Counts the device's name as CUDA's; once a process."""
    module: Any = _tensor_str
    add_suffixes = module._add_suffixes

    @functools.wraps(add_suffixes)
    def added(
        text: str, suffixes: list[str], indent: int, force_newline: bool
    ) -> str:
        if not (suffixes and suffixes[0].startswith(_OURS)):
            return str(add_suffixes(text, suffixes, indent, force_newline))
        first = suffixes[0].replace(_OURS, _CUDA, 1)
        others = suffixes[1:]
        whole: str = add_suffixes(text, [first, *others], indent, force_newline)
        return text + whole[len(text) :].replace(_CUDA, _OURS, 1)

    module._add_suffixes = added
