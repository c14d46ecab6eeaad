"""Native access to chameleon tensors, for code outside the dispatcher."""

from types import TracebackType

import torch

from torch_chameleon import _C


class resident:  # noqa: N801 (reads as a function)
    """Pins tensors in device memory and hands out native aliases of them.

    Inside, each native tensor has the same bytes as its chameleon tensor on
    the physical device (CUDA or CPU): read and write it with Triton, custom
    kernels, NCCL, DLPack or NumPy. Leaving the block ends that: torch raises
    when a native tensor is used later, and nobody can where an address was
    handed on. The tensors must fit into `config.hbm_budget` together. Native
    tensors take no part in autograd; writing to one counts as an in-place op
    on its chameleon tensor. Entering gives a tuple of native tensors, one for
    each argument.

    Args:
        *tensors: Chameleon tensors. They share storage where they did.

    Raises:
        ValueError: An argument is no chameleon tensor.
        torch.OutOfMemoryError: They do not fit together.

    Examples:
        >>> import torch, torch_chameleon
        >>> x = torch.zeros(3, device="chameleon")
        >>> with torch_chameleon.resident(x) as (native,):
        ...     _ = native.add_(1)
        >>> x.tolist()
        [1.0, 1.0, 1.0]
    """

    def __init__(self, *tensors: torch.Tensor) -> None:
        for tensor in tensors:
            if not isinstance(tensor, torch.Tensor):
                raise ValueError(
                    "torch_chameleon.resident takes chameleon tensors, one an "
                    f"argument, but got a {type(tensor).__name__}"
                )
            if tensor.device.type != "chameleon":
                raise ValueError(
                    "torch_chameleon.resident takes chameleon tensors, but "
                    f"got one on {tensor.device}"
                )
        self._tensors = tensors
        self._residence: _C.Residence | None = None

    def __enter__(self) -> tuple[torch.Tensor, ...]:
        if self._residence is not None:
            raise RuntimeError("torch_chameleon.resident is entered already")
        residence = _C.Residence(self._tensors)
        try:
            natives = residence.natives()
        except BaseException:
            residence.close()
            raise
        self._residence = residence
        return natives

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        residence, self._residence = self._residence, None
        if residence is not None:
            residence.close()
