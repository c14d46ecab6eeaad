"""Makes torch know the device: name, module, methods, conversions, guards.

Runs once, when the package is imported. Touches no device.
"""

import torch
from torch.nn.parameter import UninitializedParameter
from torch.utils import backend_registration

from torch_chameleon import _C as _C  # registers operators, guard and hooks
from torch_chameleon import (
    _backward,
    _custom_ops,
    _data_parallel,
    _decompositions,
    _device_interface,
    _flex_attention,
    _guards,
    _inductor,
    _load_safetensors,
    _meta_kernels,
    _module_to,
    _printing,
    _processes,
    _storage_bytes,
    chameleon,
)


def _register() -> None:
    backend_registration.rename_privateuse1_backend("chameleon")
    torch._register_device_module("chameleon", chameleon)
    backend_registration.generate_methods_for_privateuse1_backend(
        for_tensor=True,
        for_module=True,
        for_packed_sequence=True,
        for_storage=True,
    )
    # Lazy modules move before their first batch: see torch.nn.parameter.
    allowed: list[object] = UninitializedParameter._allowed_methods  # type: ignore[attr-defined]
    allowed.append(torch.Tensor.chameleon)  # type: ignore[attr-defined]
    _C.take_sparse_data()
    _module_to.install()
    _guards.install()
    _processes.install()
    _data_parallel.install()
    _printing.install()
    _decompositions.install()
    _meta_kernels.install()
    _device_interface.install()
    _inductor.install()
    _load_safetensors.install()
    _backward.install()
    _flex_attention.install()
    _storage_bytes.install()
    _custom_ops.install()


_register()
