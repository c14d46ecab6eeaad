"""torch_chameleon: a PyTorch device whose tensors outgrow the GPU's memory.

Importing registers the device "chameleon" and touches no hardware. Then
`model.to("chameleon")` and train as usual: tensors have no fixed place, their
bytes are in device memory, in host memory or on the way, and
`torch_chameleon.config` says how much of each there is.

Examples:
    >>> import torch, torch_chameleon
    >>> torch_chameleon.config.hbm_budget = "256MiB"
    >>> x = torch.randn(4, 4, device="chameleon")
    >>> (x @ x).device
    device(type='chameleon', index=0)
"""

from torch_chameleon import _compat as _compat  # imports torch: stays first

# isort: split
from torch_chameleon import _build_info, elastic, profiler
from torch_chameleon import _register as _register
from torch_chameleon._as_cuda import as_cuda, is_asked_for
from torch_chameleon._config import config
from torch_chameleon._environment import warn_of_misspelt
from torch_chameleon._replace_file import replace_file
from torch_chameleon._report import recording, report
from torch_chameleon._resident import resident
from torch_chameleon._safetensors import save_safetensors
from torch_chameleon._slowdown import SlowdownError
from torch_chameleon._stats import reset_swap_stats, step, swap_stats
from torch_chameleon._watch import watch

__version__ = _build_info.VERSION

__all__ = [
    "SlowdownError",
    "__version__",
    "as_cuda",
    "config",
    "elastic",
    "profiler",
    "recording",
    "replace_file",
    "report",
    "reset_swap_stats",
    "resident",
    "save_safetensors",
    "step",
    "swap_stats",
    "watch",
]

warn_of_misspelt()
if is_asked_for():
    as_cuda()
