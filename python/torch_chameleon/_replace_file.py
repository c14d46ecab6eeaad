"""Files that are replaced as a whole, or not at all."""

import contextlib
import os
import secrets
from collections.abc import Iterator


@contextlib.contextmanager
def replace_file(
    path: str | os.PathLike[str], mode: int = 0o666
) -> Iterator[str]:
    """Writes a file so that at `path` there is always a whole one.

    Inside the block, write a file of another name beside it. Leaving it brings
    that file onto the disk and gives it the name `path`, in place of what was
    there. If the block raises, the other file is removed and `path` is left as
    it was; if the process is killed, only `path.<16 hex digits>.tmp` is left
    over. Thus a training that is killed while it saves loses that save alone.

    Args:
        path: The file; what a symbolic link points to.
        mode: Its permissions, less those that the umask takes.

    Yields:
        The other file's path. It exists and is empty.

    Examples:
        >>> import torch, torch_chameleon
        >>> state = {"weight": torch.ones(3, device="chameleon")}
        >>> with torch_chameleon.replace_file("/tmp/last.pt") as temporary:
        ...     torch.save(state, temporary)
    """
    path = os.path.realpath(path)
    temporary = f"{path}.{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    os.close(os.open(temporary, flags, mode))
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _sync(os.path.dirname(path))  # a new name is on the disk when this is


def write_private(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes a file that only its owner may read; the old one until then.

    Args:
        path: The file, replaced if it exists. What is no file (a pipe,
            /dev/null) is written to.
        data: All of it.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as other:
            other.write(data)
        return
    with (
        replace_file(path, mode=0o600) as temporary,
        open(temporary, "wb") as file,
    ):
        file.write(data)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
