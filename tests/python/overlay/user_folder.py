"""A user's folder, which the overlay must not change, and commands over it."""

import hashlib
import os
import pathlib
import subprocess

from torch_chameleon.plan import overlay


def build_tree(top: pathlib.Path) -> None:
    (top / "a" / "b").mkdir(parents=True)
    (top / "empty").mkdir()
    (top / "x").write_text("old x")
    (top / "a" / "x").write_text("old a/x")
    (top / "a" / "b" / "y").write_text("old a/b/y")
    (top / "link").symlink_to("a")
    (top / "away").symlink_to("../elsewhere/z")
    (top / "loop").symlink_to("loop")


def fingerprint(top: pathlib.Path) -> str:
    """Of names, kinds, rights, times and bytes."""
    hashed = hashlib.sha256()
    for folder, folders, files in os.walk(top):
        folders.sort()
        for name in sorted([*folders, *files, "."]):
            path = pathlib.Path(folder, name)
            status = path.lstat()
            hashed.update(
                repr((str(path), status.st_mode, status.st_mtime_ns)).encode()
            )
            if path.is_symlink():
                hashed.update(os.readlink(path).encode())
            elif path.is_file():
                hashed.update(path.read_bytes())
    return hashed.hexdigest()


def made_in(top: pathlib.Path) -> pathlib.Path:
    """A user's folder with files, beside another one."""
    folder = top / "user"
    folder.mkdir()
    build_tree(folder)
    (top / "elsewhere").mkdir()
    (top / "elsewhere" / "z").write_text("old z")
    return folder


class Keeping:
    """Runs a command over an overlay; its `folder` has what was kept away."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.added = overlay.environment(folder)

    def __call__(self, *command: str, **options) -> str:
        done = subprocess.run(
            command,
            env=os.environ | self.added,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=60,
            **options,
        )
        return done.stdout
