"""Changes a library of others once somebody imports it, and not before."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

_Change = Callable[[Any], None]


def after_import(name: str, change: _Change) -> None:
    """Calls `change` with a module, now or as soon as it is imported.

    Args:
        name: The module's whole name.
        change: Gets it after it ran, before its importer sees it.
    """
    if name in sys.modules:
        change(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, change))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the one module as all others would."""

    def __init__(self, name: str, change: _Change) -> None:
        self.name = name
        self.change = change

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self.change(module)

            loader.exec_module = exec_module
        return spec
