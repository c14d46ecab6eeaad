"""Functions of torch's C++ code that take a device.

Each stays the object that it is, see `_C.alias_cuda_in`. What Python code in
torch does with a device ends in one of them: `with torch.device("cuda")`,
`torch.set_default_device`, `nn.Module.to`, `nn.Linear(..., device="cuda")`.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _device

from torch_chameleon import _C

# By owner. tests/python/test_as_cuda.py looks for others in torch's schemas.
_TORCH = (
    *("arange", "as_tensor", "asarray", "bartlett_window", "blackman_window"),
    *("empty", "empty_like", "empty_permuted", "empty_quantized"),
    *("empty_strided", "eye", "from_file", "full", "full_like"),
    *("hamming_window", "hann_window", "kaiser_window", "linspace"),
    *("logspace", "normal", "ones", "ones_like", "rand", "rand_like"),
    *("randint", "randint_like", "randn", "randn_like", "randperm", "range"),
    *("scalar_tensor", "sparse_bsc_tensor", "sparse_bsr_tensor"),
    *("sparse_compressed_tensor", "sparse_coo_tensor", "sparse_csc_tensor"),
    *("sparse_csr_tensor", "tensor", "tril_indices", "triu_indices"),
    *("zeros", "zeros_like"),
    *("_assert_tensor_metadata", "_cudnn_init_dropout_state"),
    *("_efficientzerotensor", "_empty_affine_quantized", "_make_dep_token"),
    *("_empty_per_channel_affine_quantized", "_pin_memory"),
    *("_nested_tensor_from_tensor_list", "_resize_output_"),
    # Of autocast.
    *("get_autocast_dtype", "set_autocast_dtype"),
)
_TENSOR = (
    *("is_pinned", "new", "new_empty", "new_empty_strided", "new_full"),
    *("new_ones", "new_tensor", "new_zeros", "pin_memory", "to"),
)
_INNER = {  # of torch._C
    "": (
        *("_is_autocast_available", "import_ir_module"),
        "import_ir_module_from_buffer",
    ),
    "_fft": ("fft_fftfreq", "fft_rfftfreq"),
    "_nested": ("nested_tensor",),
    "_nn": ("_parse_to",),
}
_CONSTRUCTORS = (
    *(torch.Generator, torch.Stream, torch.Event),
    *(torch._C.StorageBase, torch.UntypedStorage),
)
# To these, no device means CUDA.
_OR_NONE = ("is_autocast_enabled", "set_autocast_enabled")


def _found(owner: Any, names: tuple[str, ...]) -> Iterator[Any]:
    """What this release of torch has of them."""
    for name in names:
        if hasattr(owner, name):
            yield getattr(owner, name)


def install() -> None:
    """Turns it on, for the rest of the process."""
    for function in _found(torch, _TORCH):
        _C.alias_cuda_in(function)
    for method in _found(torch._C.TensorBase, _TENSOR):
        _C.alias_cuda_in(method)
    for module, names in _INNER.items():
        owner = getattr(torch._C, module) if module else torch._C
        for function in _found(owner, names):
            _C.alias_cuda_in(function)
    for function in _found(torch, _OR_NONE):
        _C.alias_cuda_in(function, or_none=True)
    for constructor in _CONSTRUCTORS:
        _C.alias_cuda_in(constructor)
    # A function's hash changes with its pointer, so a set of them that torch
    # has made before would know none of them.
    _device._device_constructors.cache_clear()
    _C.equate_cuda_devices()
