"""Entry point that lets `import torch` alone bring the chameleon device.

torch calls every entry point of the group "torch.backends" at the end of its
own import. A registered device becomes the process's accelerator for every
library in it, so this happens only where CHAMELEON_AUTOLOAD=1 asks for it. The
check lives outside the package so that, unasked, the package is not imported.
CHAMELEON_AS_CUDA=1 asks for it too, and for "cuda" to mean chameleon.
"""

import os
import sys


def _autoload() -> None:
    """Imports torch_chameleon if the environment asks for it."""
    asked = ("CHAMELEON_AUTOLOAD", "CHAMELEON_AS_CUDA")
    if not any(os.environ.get(name) == "1" for name in asked):
        return
    # Present when it was imported first: it is importing torch right now and
    # goes on after torch is complete.
    if "torch_chameleon" not in sys.modules:
        import torch_chameleon  # noqa: F401
