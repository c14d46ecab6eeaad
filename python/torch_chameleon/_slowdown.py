"""The error that `config.max_slowdown` asks for."""

from torch_chameleon import _C


class SlowdownError(RuntimeError):
    """Swapping slows a training down by more than `config.max_slowdown`.

    Raised by the op that follows the last of three steps in a row that took
    longer than that many times their time without waits for bytes. The op has
    not run; nothing is lost, and the training may go on, as when memory had
    run out. The message has the step's figures and says what would help.
    """


_C.set_slowdown_error(SlowdownError)
