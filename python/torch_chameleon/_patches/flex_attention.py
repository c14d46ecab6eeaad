"""FlexAttention in eager mode.

torch.nn.attention.flex_attention refuses devices by name, and knows CUDA's,
the CPU's and two others. In eager mode it is made of ordinary operators, with
gradients, which the device has.
"""

import functools

from torch import Tensor
from torch.nn.attention import flex_attention


def install() -> None:
    """Lets chameleon tensors in; once a process."""
    validate = flex_attention._validate_device

    @functools.wraps(validate)
    def validated(query: Tensor, key: Tensor, value: Tensor) -> None:
        if query.device.type != "chameleon":
            validate(query, key, value)

    flex_attention._validate_device = validated
