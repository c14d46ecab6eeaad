"""Keeps what a script writes away from the user's files.

A script that `plan` runs has no values, so what it saves is worth nothing, and
must not take the place of what is there. Its process, and all that it starts,
run over a copy-on-write overlay (`python/overlay/`): their writes go to a
temporary folder, where their later reads find them.
"""

import ctypes
import os
import pathlib
import stat
from collections.abc import Iterator
from typing import Any

from torch_chameleon._patches.after_import import after_import

_LIBRARY = (
    pathlib.Path(__file__).parent.parent / "lib" / "libchameleon_overlay.so"
)
_ROOT = "TORCH_CHAMELEON_OVERLAY"
_NAMED = 3  # of each kind of change; the rest is a number
# Loggers that send what they are told to a server, or write by programs of
# their own: each by the variable that its documentation names.
_LOGGERS_OFF = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "TRACKIO_OFFLINE": "1",
}


def environment(folder: pathlib.Path) -> dict[str, str]:
    """Prepares an overlay.

    Args:
        folder: A folder that is used for nothing else. The process may write
            to it as to any other.

    Returns:
        What the process's environment must have in addition.

    Raises:
        ValueError: No overlay is possible with that folder.
    """
    folder = folder.resolve()
    # The loader takes both as the end of a name, and knows no way to quote.
    if any(sign in str(folder) for sign in " :"):
        raise ValueError(
            f"the temporary folder {folder} has a space or a colon in its "
            "name: set TMPDIR to one without"
        )
    for name in ("upper", "work", "tmp"):
        (folder / name).mkdir()
    library = folder / _LIBRARY.name
    library.symlink_to(_LIBRARY)
    others = os.environ.get("LD_PRELOAD", "")
    return {
        **_LOGGERS_OFF,
        _ROOT: str(folder),
        "LD_PRELOAD": f"{library} {others}".strip(),
        "TMPDIR": str(folder / "tmp"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def start() -> None:
    """Called by the process before it runs anything of the user's.

    Raises:
        RuntimeError: Its writes would not be kept away.
    """
    library = ctypes.CDLL(None)
    try:
        is_on = library.torch_chameleon_overlay_start() != 0
    except AttributeError:
        is_on = False
    if not is_on:
        raise RuntimeError(
            "what the script writes could not be kept away from your files "
            "(this Python takes no LD_PRELOAD), so it was not run"
        )
    after_import("safetensors", _write_by_python)


def _write_by_python(safetensors: Any) -> None:
    """Its own code renames by a system call that the overlay cannot see."""

    def serialize_file(
        tensors: Any, filename: str | os.PathLike[str], metadata: Any = None
    ) -> None:
        with open(filename, "wb") as file:
            file.write(safetensors.serialize(tensors, metadata))

    safetensors.serialize_file = serialize_file


def changes(folder: pathlib.Path) -> dict[str, list[str]]:
    """What was kept away.

    Args:
        folder: As given to `environment`; the process has ended.

    Returns:
        The paths "written" that were not there before, "changed" and "removed".
    """
    found: dict[str, list[str]] = {"written": [], "changed": [], "removed": []}
    for kind, path in _changes(folder.resolve() / "upper", pathlib.Path("/")):
        found[kind].append(str(path))
    return found


def _changes(
    upper: pathlib.Path, lower: pathlib.Path
) -> Iterator[tuple[str, pathlib.Path]]:
    """Of one folder of the upper tree; see overlay.h for what its modes say."""
    mode = upper.stat().st_mode
    if mode & stat.S_ISVTX and mode & stat.S_ISGID:
        return  # stands for the lower folder
    names = set(os.listdir(upper))
    if mode & stat.S_ISVTX:
        if not os.path.isdir(lower):
            if not names:
                yield "written", lower
        else:
            for name in sorted(set(os.listdir(lower)) - names):
                yield "removed", lower / name
    for name in sorted(names):
        ours, theirs = upper / name, lower / name
        mode = ours.lstat().st_mode
        if stat.S_ISDIR(mode):
            yield from _changes(ours, theirs)
        elif _is_written(ours, theirs, mode):
            yield "changed" if os.path.lexists(theirs) else "written", theirs


def _is_written(ours: pathlib.Path, theirs: pathlib.Path, mode: int) -> bool:
    if stat.S_ISLNK(mode):
        was = theirs.is_symlink() and os.readlink(theirs)
        return os.readlink(ours) != was
    if stat.S_ISREG(mode) and mode & stat.S_ISVTX:
        return ours.read_text(errors="surrogateescape") != str(theirs)
    return True


def sentence(changed: dict[str, list[str]]) -> str:
    """What was kept away, in one line.

    Args:
        changed: What `changes` gave.
    """
    parts = [
        f"{len(paths)} {kind} ({_named(paths)})"
        for kind, paths in changed.items()
        if paths
    ]
    if not parts:
        return "The script wrote no files in these steps."
    return "Kept away, your files are as they were: " + ", ".join(parts) + "."


def _named(paths: list[str]) -> str:
    here = f"{os.getcwd()}/"
    names = [_printable(path.removeprefix(here)) for path in paths[:_NAMED]]
    if len(paths) > _NAMED:
        names.append("…")
    return ", ".join(names)


def _printable(name: str) -> str:
    """File names may be any bytes, and a terminal obeys some of them."""
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode()
        for sign in name
    )
