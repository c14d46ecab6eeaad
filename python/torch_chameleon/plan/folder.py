"""The temporary folder of a plan, which nothing outlives."""

import contextlib
import fcntl
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

_PREFIX = "chameleon-plan-"
_LOCK = "in-use"


@contextlib.contextmanager
def working_folder() -> Iterator[pathlib.Path]:
    """A folder for one plan.

    It is locked while the plan lives. Those of plans that were killed are not,
    and are removed at the next one's start.
    """
    _remove_what_was_left()
    folder = pathlib.Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        with (folder / f"{_LOCK}.new").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (folder / f"{_LOCK}.new").rename(folder / _LOCK)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_what_was_left() -> None:
    for folder in pathlib.Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.getuid() and _is_free(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_free(folder: pathlib.Path) -> bool:
    """Whether it has a lock that nobody holds; without one it is being made."""
    with (folder / _LOCK).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
