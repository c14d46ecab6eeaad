"""What host memory this process may use, and what of it is available."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class _Files(NamedTuple):
    """Of a control group's memory, by the version of its interface."""

    root: str
    limit: str
    usage: str
    cache: str  # a line of memory.stat: page cache that is easily dropped


_VERSION_1 = _Files(
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
)
_VERSION_2 = _Files(
    "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
)
_NO_LIMIT = 1 << 60  # version 1 says a number above it


def available_bytes(root: str = "/") -> int | None:
    """What can still be taken: by the machine, and by all control groups.

    Args:
        root: Before each path.

    Returns:
        None: The machine does not say.
    """
    found = [limit - used for limit, used in _groups(root)]
    of_machine = _number(Path(root, "proc/meminfo"), "MemAvailable:")
    if of_machine is not None:
        found.append(1024 * of_machine)
    return max(min(found), 0) if found else None


def limit_bytes(root: str = "/") -> int | None:
    """The least limit of the process's control groups; None: there is none.

    Args:
        root: Before each path.
    """
    return min((limit for limit, _ in _groups(root)), default=None)


def lines(path: str | Path) -> list[str]:
    """A file's; none, if it cannot be read.

    Args:
        path: Of the file.
    """
    with contextlib.suppress(OSError):
        return Path(path).read_text().splitlines()
    return []


def _groups(root: str) -> Iterator[tuple[int, int]]:
    """Limit and use of each group with a limit, up to the root."""
    for line in lines(Path(root, "proc/self/cgroup")):
        number, controllers, group = line.split(":", 2)
        if number != "0" and "memory" not in controllers.split(","):
            continue
        files = _VERSION_2 if number == "0" else _VERSION_1
        top = Path(root, files.root)
        folder = top / group.lstrip("/")
        for each in (folder, *folder.parents):
            if not each.is_relative_to(top):
                break
            limit = _number(each / files.limit)
            if limit is not None and limit < _NO_LIMIT:
                used = _number(each / files.usage) or 0
                cache = _number(each / "memory.stat", files.cache) or 0
                yield limit, used - min(cache, used)


def _number(path: Path, name: str = "") -> int | None:
    """The one behind a name, or a file's only one; None: there is none."""
    found = (
        line.removeprefix(name) for line in lines(path) if line.startswith(name)
    )
    word, *_ = next(found, "").split() or [""]
    return int(word) if word.isdigit() else None
