"""Compiled extensions that want CUDA tensors say what to do instead.

C++ code cannot be told that "cuda" means chameleon. What it says about a
chameleon tensor ("must be a CUDA tensor") gets a sentence that names
`torch_chameleon.resident`. An extension that reads an address unasked cannot
be told from one that calls torch's ops, which works.
"""

import functools
import importlib.machinery
import mmap
from collections.abc import Callable
from types import BuiltinFunctionType, ModuleType
from typing import Any

from torch_chameleon._patches.guards import has_ours, refusal

_LINKED_TO_TORCH = b"libc10.so"
_NAMES_END = 32 << 20  # libraries are named near a file's beginning


def _explaining(
    function: Callable[..., Any], module: str
) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            speaks_of_cuda = "cuda" in str(error).lower()
            if speaks_of_cuda and has_ours((*args, *kwargs.values())):
                name = f"{module}.{function.__name__}"
                error.args = (f"{error}\n{refusal(name)}",)
            raise

    return call


def _uses_torch(path: str) -> bool:
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return content.find(_LINKED_TO_TORCH, 0, _NAMES_END) >= 0


def install() -> None:
    """Turns it on for extensions that are loaded from now on."""
    loader: Any = importlib.machinery.ExtensionFileLoader
    original = loader.exec_module

    @functools.wraps(original)
    def exec_module(self: Any, module: ModuleType) -> None:
        original(self, module)
        if not _uses_torch(self.path):
            return
        for name, value in list(vars(module).items()):
            if isinstance(value, BuiltinFunctionType):
                setattr(module, name, _explaining(value, module.__name__))

    loader.exec_module = exec_module
