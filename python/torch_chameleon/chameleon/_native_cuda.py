"""`torch.cuda` as torch made it.

`torch_chameleon.as_cuda` puts other functions there; what the package asks of
CUDA itself it asks here.
"""

from torch.cuda import (
    get_arch_list as get_arch_list,
)
from torch.cuda import (
    get_device_properties as get_device_properties,
)
from torch.cuda import (
    get_gencode_flags as get_gencode_flags,
)
