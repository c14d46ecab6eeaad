"""Hands chameleon tensors to code that knows nothing of the device."""

import torch
import torch_chameleon

x = torch.arange(6.0, device="chameleon").view(2, 3)

# Inside, `native` has the same bytes on the physical device, pinned there.
with torch_chameleon.resident(x) as (native,):
    other = torch.utils.dlpack.from_dlpack(native)
    other.mul_(10)

print(x)
