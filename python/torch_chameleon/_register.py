"""Makes torch know the device: its name, module and methods; then patches it.

Runs once, when the package is imported. Touches no device.
"""

import torch
from torch.nn.parameter import UninitializedParameter
from torch.utils import backend_registration

from torch_chameleon import _C as _C  # registers operators, guard and hooks
from torch_chameleon import _patches, chameleon


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
    _patches.install()


_register()
