"""Changes a library of others once somebody imports it, and not before."""

import importlib.abc
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_Change = Callable[[Any], None]


def after_import(name: str, change: _Change) -> None:
    """Calls `change` with a module whenever it has been imported.

    That is now if it is there, and else once it is: again after a reload, never
    where somebody only asks whether there is such a module, or fails to import
    it.

    Args:
        name: The module's whole name.
        change: Gets it after it ran, before its importer sees it.
    """
    sys.meta_path.insert(0, _Finder(name, change))
    if name in sys.modules:
        module = sys.modules[name]
        if getattr(module.__spec__, "_initializing", False):
            _BeingImported.watch(module, change)
        else:
            change(module)


class _BeingImported(ModuleSpec):
    """Of a module that imports torch, and torch this package, before it ran.

    Python marks in its spec when that has ended.
    """

    change: _Change

    @classmethod
    def watch(cls, module: ModuleType, change: _Change) -> None:
        spec: Any = module.__spec__
        spec.__class__ = cls
        spec.change = change

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "_initializing" and not value:
            change = self.change
            del self.change
            self.__class__ = ModuleSpec  # type: ignore[assignment]
            if self.name in sys.modules:  # else it has failed
                change(sys.modules[self.name])


class _Loader:
    """Loads a module as its own loader does, and changes it then."""

    def __init__(self, loader: Any, change: _Change) -> None:
        self._loader = loader
        self._change = change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: Any) -> None:
        # What looks at the module finds the loader that it knows.
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._change(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the one module as all others would."""

    def __init__(self, name: str, change: _Change) -> None:
        self._name = name
        self._change = change

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        # Those before it were asked already.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    loader: Any = _Loader(spec.loader, self._change)
                    spec.loader = loader
                return spec
        return None
