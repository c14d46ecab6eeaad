"""torch_chameleon.config: every option, as attributes.

The table in C++ is the truth (`_C.option_specs`): names, defaults, choices,
units and checks live there, and this is a typed view of it that holds no
value of its own. Process-wide; safe from any thread.
"""

import functools
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar, overload

from torch_chameleon import _C

_F = TypeVar("_F", bound=Callable[..., Any])
# A dict holds named figures, such as a GPU's.
_Value = int | float | str | Mapping[str, int | float | str] | None


class _Option:
    """One row of the table as an attribute; subclasses give the type."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.key = name

    def __set__(self, config: "Config", value: _Value) -> None:
        _C.set_option(self.key, _text(value))

    def read(self) -> _Value:
        raise NotImplementedError


class _Bytes(_Option):
    """Set as a count or a text such as "8GiB"; read as a count or None."""

    @overload
    def __get__(self, config: None, owner: type) -> "_Bytes": ...
    @overload
    def __get__(self, config: "Config", owner: type) -> int | None: ...
    def __get__(
        self, config: "Config | None", owner: type
    ) -> "int | _Bytes | None":
        return self if config is None else self.read()

    def read(self) -> int | None:
        text = _C.get_option(self.key)
        return None if text is None else _C.parse_bytes(text)


class _Number(_Option):
    """Set and read as a real number, or None."""

    @overload
    def __get__(self, config: None, owner: type) -> "_Number": ...
    @overload
    def __get__(self, config: "Config", owner: type) -> float | None: ...
    def __get__(
        self, config: "Config | None", owner: type
    ) -> "float | _Number | None":
        return self if config is None else self.read()

    def read(self) -> float | None:
        text = _C.get_option(self.key)
        return None if text is None else float(text)


class _Count(_Option):
    """Set and read as a whole number."""

    @overload
    def __get__(self, config: None, owner: type) -> "_Count": ...
    @overload
    def __get__(self, config: "Config", owner: type) -> int: ...
    def __get__(self, config: "Config | None", owner: type) -> "int | _Count":
        return self if config is None else self.read()

    def read(self) -> int:
        return int(float(_C.get_option(self.key) or 0))


class _Text(_Option):
    """Set and read as text: a choice or a name."""

    @overload
    def __get__(self, config: None, owner: type) -> "_Text": ...
    @overload
    def __get__(self, config: "Config", owner: type) -> str: ...
    def __get__(self, config: "Config | None", owner: type) -> "str | _Text":
        return self if config is None else self.read()

    def read(self) -> str:
        return _C.get_option(self.key) or ""


def _text(value: object) -> str | None:
    """The text that C++ checks; it also words what is wrong with it."""
    if value is None:
        return None
    # Surrogates are no text for C++.
    return _written(value).encode("utf-8", "backslashreplace").decode()


def _written(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return ", ".join(
            f"{key}={_written(int(each) if isinstance(each, bool) else each)}"
            for key, each in value.items()
        )
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "none" if value is None else str(value)


class Config:
    """Options of torch_chameleon; `print(torch_chameleon.config)` lists them.

    Every key can also be set in the environment as `CHAMELEON_<KEY>`. A wrong
    value raises ValueError with the key, the value and what is allowed; an
    unknown key raises AttributeError.

    Examples:
        >>> import torch_chameleon
        >>> torch_chameleon.config.hbm_budget = "512MiB"
        >>> torch_chameleon.config.hbm_budget
        536870912
    """

    hbm_budget = _Bytes()
    oversubscription = _Number()
    host_budget = _Bytes()
    physical_device = _Text()
    simulated_gpu = _Text()
    simulated_reads = _Text()
    simulated_share = _Number()
    policy = _Text()
    recompute = _Text()
    step_marks = _Text()
    max_slowdown = _Number()
    compile = _Text()
    mirror_steps = _Count()
    debug = _Number()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(_unknown(name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _keys():
            raise AttributeError(_unknown(name))
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(
            f"torch_chameleon.config.{name} cannot be deleted; set it to None "
            "for its default"
        )

    def __dir__(self) -> list[str]:
        return sorted({*_keys(), *object.__dir__(self)})

    def __iter__(self) -> Iterator[tuple[str, _Value]]:
        """Yields (key, value in force), in the order of the table."""
        for key in _keys():
            yield key, getattr(self, key)

    def __repr__(self) -> str:
        rows = [
            (spec["key"], repr(getattr(self, spec["key"])), spec["help"])
            for spec in _C.option_specs()
        ]
        return "torch_chameleon.config\n" + _columns(rows)

    def patch(self, **values: _Value) -> "Patch":
        """Sets several keys for a while: a context manager and a decorator.

        Process-wide, not per thread. If one key cannot be set, all keep the
        value that they had.

        Args:
            **values: Keys and their values, as they would be assigned.

        Raises:
            AttributeError: A key is unknown.
            ValueError: A value is not allowed (raised on entering).

        Examples:
            >>> import torch_chameleon
            >>> with torch_chameleon.config.patch(hbm_budget="512MiB"):
            ...     torch_chameleon.config.hbm_budget
            536870912
        """
        for key in values:
            if key not in _keys():
                raise AttributeError(_unknown(key))
        return Patch(values)

    def markdown_table(self) -> str:
        """The table of all keys as Markdown, for documentation."""
        lines = [
            "| key | default | environment | effect |",
            "|---|---|---|---|",
        ]
        for spec in _C.option_specs():
            choices = ", ".join(f"`{choice}`" for choice in spec["choices"])
            effect = spec["help"]
            if choices:
                effect += f" One of {choices}."
            if spec["before_first_use"]:
                effect += " Fixed at the first use of the device."
            lines.append(
                f"| `{spec['key']}` | {spec['default']} | "
                f"`{spec['environment']}` | {effect} |"
            )
        return "\n".join(lines)


class Patch:
    """What `config.patch` returns: enter it, or decorate with it."""

    def __init__(self, values: Mapping[str, _Value]) -> None:
        self._values = {key: _text(value) for key, value in values.items()}
        self._saved: list[dict[str, str | None]] = []  # one per nesting level

    def __enter__(self) -> Config:
        saved = {key: _C.get_option(key) for key in self._values}
        errors = _set_all(self._values)
        if errors:
            _set_all(saved)
            raise errors[0]
        self._saved.append(saved)
        return config

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        errors = _set_all(self._saved.pop())
        if errors and error is None:
            raise errors[0]

    def __call__(self, function: _F) -> _F:
        @functools.wraps(function)
        def patched(*args: Any, **kwargs: Any) -> Any:
            with Patch(dict(self._values)):
                return function(*args, **kwargs)

        return patched  # type: ignore[return-value]


def _set_all(texts: dict[str, str | None]) -> list[ValueError]:
    """Sets all keys that can be set; returns why the others cannot.

    Keys may depend on one another (the product of budget and oversubscription
    has to hold what is live), so what fails is tried again after the others.
    """
    pending = dict(texts)
    while True:
        errors: dict[str, ValueError] = {}
        for key, text in pending.items():
            try:
                _C.set_option(key, text)
            except ValueError as error:
                errors[key] = error
        if len(errors) in (0, len(pending)):
            return list(errors.values())
        pending = {key: pending[key] for key in errors}


def _keys() -> list[str]:
    return [spec["key"] for spec in _C.option_specs()]


def _unknown(name: str) -> str:
    return (
        f"torch_chameleon.config has no key {reprlib.repr(name)}; the keys are "
        f"{', '.join(_keys())}"
    )


def _columns(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    )


config = Config()
