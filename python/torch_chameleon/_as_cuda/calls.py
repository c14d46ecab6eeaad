"""Functions of torch's C++ code that take a device.

Each stays the object that it is, see `_C.alias_cuda_in`. What Python code in
torch does with a device ends in one of them: `with torch.device("cuda")`,
`torch.set_default_device`, `nn.Module.to`, `nn.Linear(..., device="cuda")`.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import _device

from torch_chameleon import _C
from torch_chameleon._C import Unsaid

# By owner. tests/python/as_cuda/test_as_cuda.py looks for others in torch's
# schemas.
_FACTORIES = (
    *("arange", "bartlett_window", "blackman_window", "empty"),
    *("empty_permuted", "empty_quantized", "empty_strided", "eye", "full"),
    *("hamming_window", "hann_window", "kaiser_window", "linspace"),
    *("logspace", "ones", "rand", "randint", "randn", "randperm", "range"),
    *("scalar_tensor", "tril_indices", "triu_indices", "zeros"),
)
_OF_DATA = (
    *("as_tensor", "asarray", "normal", "sparse_bsc_tensor"),
    *("sparse_bsr_tensor", "sparse_compressed_tensor", "sparse_coo_tensor"),
    *("sparse_csc_tensor", "sparse_csr_tensor", "tensor"),
)
_TORCH = (
    *("empty_like", "from_file", "full_like", "ones_like", "rand_like"),
    *("randint_like", "randn_like", "zeros_like"),
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
_INNER_UNSAID = {"_fft": Unsaid.DEFAULT}
_CONSTRUCTORS = (
    *(torch.Generator, torch.Stream, torch.Event),
    *(torch._C.StorageBase, torch.UntypedStorage),
)
# To these, no device means CUDA.
_CUDA_IF_NONE = ("is_autocast_enabled", "set_autocast_enabled")


def _alias(
    owner: Any, names: Iterable[str], unsaid: Unsaid = Unsaid.NOTHING
) -> None:
    """Tells what this release of torch has of them."""
    for name in names:
        if hasattr(owner, name):
            _C.alias_cuda_in(getattr(owner, name), unsaid)


def install() -> None:
    """Turns it on, for the rest of the process."""
    _alias(torch, _TORCH)
    _alias(torch, _FACTORIES, Unsaid.DEFAULT)
    _alias(torch, _OF_DATA, Unsaid.DEFAULT_FOR_DATA)
    _alias(torch, _CUDA_IF_NONE, Unsaid.CUDA)
    _alias(torch._C.TensorBase, _TENSOR)
    for module, names in _INNER.items():
        owner = getattr(torch._C, module) if module else torch._C
        _alias(owner, names, _INNER_UNSAID.get(module, Unsaid.NOTHING))
    for constructor in _CONSTRUCTORS:
        _C.alias_cuda_in(constructor)
    # A function's hash changes with its pointer, so a set of them that torch
    # has made before would know none of them.
    _device._device_constructors.cache_clear()
    _C.equate_cuda_devices()
