"""One sentence where PyTorch cannot run a backward of plain CUDA tensors.

PyTorch's engine orders streams for one kind of accelerator a process, and that
is chameleon wherever it is registered (pytorch#161129, torch 2.11): a backward
that reaches a tensor on "cuda" ends with an internal assertion, also where
nothing in it is chameleon's.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

_ASSERTION = "opt_ready_stream && opt_parent_stream"
_SENTENCE = (
    'PyTorch cannot run backward through tensors on "cuda" in a process that '
    "imported torch_chameleon, since its engine knows one kind of accelerator "
    'a process (pytorch#161129): put all that needs gradients on "chameleon" '
    '(and detach() what goes to "cuda"), or train it in a process without '
    "torch_chameleon."
)


def _explain(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def explained(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        except RuntimeError as error:
            if _ASSERTION not in str(error):
                raise
        raise RuntimeError(_SENTENCE)

    return explained


def install() -> None:
    """Wraps what `backward()` and `torch.autograd.grad` call."""
    run = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    torch.autograd._engine_run_backward = _explain(run)  # type: ignore[attr-defined]
