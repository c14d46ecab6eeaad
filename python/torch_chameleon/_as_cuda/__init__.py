"""`torch_chameleon.as_cuda`: programs that were written for CUDA, as they are.

Functions of torch that take a device are told "chameleon" where a program says
"cuda" (`calls`), `torch.cuda` answers for the device (`cuda_module`), and so
do the few places that go by the name: `tensors`, `amp`, `files`, `elsewhere`.
What cannot be told is `extensions`.
Nothing stands between a program and a call that takes no device.
"""

import os

__all__ = ["as_cuda"]

_VARIABLE = "CHAMELEON_AS_CUDA"
_is_on = False


def as_cuda() -> None:
    """Makes "cuda" mean chameleon, for the rest of the process.

    `torch.cuda.is_available()` is true then, and tensors that are made on
    "cuda" or moved there are chameleon tensors. Values and random numbers are
    the physical device's, as ever; what is made on the CPU stays there until
    it is moved. Processes that this one starts do the same: as the package is
    installed, `import torch` in them is enough.

    `torch.device("cuda", i)` stays what it is and equals a tensor's
    `torch.device("chameleon", i)`. What no program is spared: a tensor's
    `device.type` is "chameleon".

    A second call does nothing. The variable CHAMELEON_AS_CUDA=1 is the same
    for programs that cannot call, and `python -m torch_chameleon run` is a
    command.

    Examples:
        >>> import torch, torch_chameleon
        >>> torch_chameleon.as_cuda()                       # doctest: +SKIP
        >>> torch.ones(2, device="cuda").is_cuda            # doctest: +SKIP
        True
    """
    global _is_on
    if _is_on:
        return
    _is_on = True
    os.environ[_VARIABLE] = "1"
    # Not before: most programs that import the package never ask for it.
    from torch_chameleon._as_cuda import (
        amp,
        calls,
        collectives,
        cuda_module,
        elsewhere,
        extensions,
        files,
        graphs,
        process_groups,
        tensors,
    )

    for part in (
        *(cuda_module, calls, tensors, collectives, graphs, amp, files),
        *(process_groups, elsewhere, extensions),
    ):
        part.install()


def is_asked_for() -> bool:
    """Whether the environment says that this process shall do so."""
    return os.environ.get(_VARIABLE) == "1"
