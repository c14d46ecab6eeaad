"""torch.compile's default back end, Inductor, which has no code for the device.

It writes kernels that take addresses, which tensors here do not have. A graph
with such tensors is refused in one sentence before Inductor sees it or, with
`config.compile = "eager"`, given to the back end "aot_eager", which runs
PyTorch's own kernels. Importing Inductor takes seconds, so it is changed when
somebody else imports it.
"""

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torch_chameleon._config import config
from torch_chameleon._patches.after_import import after_import

_REFUSAL = (
    "Inductor writes kernels that take addresses, and chameleon tensors have "
    'none: use torch.compile(..., backend="aot_eager"), whose results have the '
    'same bits; torch_chameleon.config.compile = "eager" does that by itself.'
)
_REFUSAL_AHEAD_OF_TIME = (
    "Inductor writes kernels that take addresses, and chameleon tensors have "
    "none: run what torch.export.export gives with its .module() instead."
)
_REPLACED = (
    'chameleon: torch.compile runs backend "aot_eager" in place of Inductor, '
    'whose kernels take addresses (torch_chameleon.config.compile = "eager").'
)


@functools.cache
def _error() -> type[Exception]:
    """What is raised; Dynamo lets no other exception pass as it is."""
    from torch._dynamo.exc import ShortenTraceback

    class InductorError(ShortenTraceback, NotImplementedError):
        def __init__(self, text: str) -> None:
            caller = inspect.currentframe()
            # The traceback that is shown begins where Inductor is left.
            super().__init__(
                text, first_useful_frame=caller.f_back if caller else None
            )
            self._text = text

        def __str__(self) -> str:
            # Dynamo adds to what was given how to report a bug to PyTorch.
            return self._text

    InductorError.__qualname__ = InductorError.__name__
    return InductorError


def _is_ours(value: object) -> bool:
    device = value if isinstance(value, torch.device) else None
    if isinstance(value, torch.Tensor):
        device = value.device
    return device is not None and device.type == "chameleon"


def _values(model: object) -> Iterator[object]:
    """Everything in a graph and its subgraphs that may have a device."""
    if not isinstance(model, torch.nn.Module):
        return
    for module in model.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            yield (
                node.meta.get("example_value"),
                node.meta.get("val"),
                node.args,
                node.kwargs,
            )


def _has_ours(model: object, inputs: Sequence[object]) -> bool:
    return torch.utils._pytree.tree_any(_is_ours, (inputs, *_values(model)))


@functools.cache  # once
def _warn() -> None:
    warnings.warn(_REPLACED, stacklevel=2)


def _checked(compile_fx: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(compile_fx)
    def checked(
        model_: Any, example_inputs_: Sequence[Any], *args: Any, **options: Any
    ) -> Any:
        if not _has_ours(model_, example_inputs_):
            return compile_fx(model_, example_inputs_, *args, **options)
        if torch._inductor.virtualized.V.aot_compilation:
            raise _error()(_REFUSAL_AHEAD_OF_TIME)
        if config.compile == "error":
            raise _error()(_REFUSAL)
        _warn()
        run = torch._dynamo.lookup_backend("aot_eager")
        return run(model_, list(example_inputs_))

    return checked


def _check(module: Any) -> None:
    module.compile_fx = _checked(module.compile_fx)


class _Scheduling:
    """What Inductor asks of a device before it writes anything."""

    def __init__(self, scheduler: object) -> None:
        pass

    def get_backend_features(self, device: object) -> frozenset[object]:
        return frozenset()


class _Refusing:
    """Where Inductor begins to write what calls its kernels."""

    @staticmethod
    def create(*args: object) -> None:
        raise _error()(_REFUSAL)


def _register(module: Any) -> None:
    """For graphs that show their devices only while they are compiled."""
    module.register_backend_for_device(
        "chameleon", _Scheduling, _Refusing, _Refusing, _Refusing
    )


def install() -> None:
    """Changes Inductor, now or when it is imported; once a process."""
    after_import("torch._inductor.compile_fx", _check)
    after_import("torch._inductor.codegen.common", _register)
