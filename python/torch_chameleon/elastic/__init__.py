"""A run that survives: committed states outlive the process that made them.

`State` keeps what a training is made of; `commit()` copies it into memory that
has no name and that another process holds (the keeper), so that a worker which
torch's elastic agent starts again is back without reading a disk. The agents
are torch's own: `python -m torch_chameleon elastic` is a front of them, and
plain `torchrun --max-restarts` does as well.
"""

from torch_chameleon.elastic._explaining import explain
from torch_chameleon.elastic._replicas import manager
from torch_chameleon.elastic._shares import shares
from torch_chameleon.elastic._state import State

__all__ = ["State", "explain", "manager", "shares"]
