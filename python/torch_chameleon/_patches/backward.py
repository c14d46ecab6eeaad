"""What `backward()` and `torch.autograd.grad` call, wrapped.

The end of a backward pass on chameleon is told to `_steps`. And one sentence
comes where PyTorch cannot run a backward of plain CUDA tensors: its engine
orders streams for one kind of accelerator a process, and that is chameleon
wherever it is registered (pytorch#161129, torch 2.11). A backward that reaches
a tensor on "cuda" ends with an internal assertion, also where nothing in it is
chameleon's.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_chameleon import _steps

_ASSERTION = "opt_ready_stream && opt_parent_stream"
_SENTENCE = (
    'PyTorch cannot run backward through tensors on "cuda" in a process that '
    "imported torch_chameleon, since its engine knows one kind of accelerator "
    'a process (pytorch#161129): put all that needs gradients on "chameleon" '
    '(and detach() what goes to "cuda"), or train it in a process without '
    "torch_chameleon."
)


def _wrap(run: Callable[..., Any]) -> Callable[..., Any]:
    running = 0  # one runs in another where PyTorch's checkpoints are reentrant

    @functools.wraps(run)
    def wrapped(outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        nonlocal running
        running += 1
        try:
            result = run(outputs, *args, **kwargs)
        except RuntimeError as error:
            if _ASSERTION not in str(error):
                raise
            raise RuntimeError(_SENTENCE) from None
        finally:
            running -= 1
        if running == 0:
            _tell_end(outputs)
        return result

    return wrapped


def _tell_end(outputs: Sequence[Any]) -> None:
    for output in outputs[:1]:
        device = getattr(output, "device", None)  # or it is an edge of a graph
        if device is not None and device.type == "chameleon":
            _steps.backward_ended(device.index)


def install() -> None:
    """Wraps what `backward()` and `torch.autograd.grad` call."""
    run = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    torch.autograd._engine_run_backward = _wrap(run)  # type: ignore[attr-defined]
