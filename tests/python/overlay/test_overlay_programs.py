"""Random programs of file operations see what they would see natively.

They run twice, over a copy of a folder and over the overlay; the overlay's
folder must not change.
"""

import json
import random
import shutil
import subprocess
import sys

import pytest
from user_folder import Keeping, fingerprint, made_in


@pytest.fixture
def user(tmp_path):
    return made_in(tmp_path)


@pytest.fixture
def keeping(tmp_path):
    return Keeping(tmp_path / "overlay")


# Carries out its operations and prints what each gave; then all that it sees.
PROGRAM = """
import json, os, shutil, sys

def seen(top):
    for folder, folders, files in os.walk(top):
        folders.sort()
        yield [folder, os.stat(folder).st_mode & 0o1666]
        for name in sorted(folders + files):
            path = os.path.join(folder, name)
            what = os.lstat(path).st_mode & 0o170777
            if os.path.islink(path):
                yield [path, os.readlink(path), os.path.exists(path)]
            elif os.path.isfile(path):
                yield [path, what, open(path, "rb").read().decode()]

def write(path, text, mode):
    with open(path, mode) as file:
        file.write(text)

def read(path):
    return open(path).read()

def overwrite(path, text):
    with open(path, "r+") as file:
        file.seek(1)
        file.write(text)

def list_folder(path):
    return sorted(
        (entry.name, entry.is_dir(), entry.is_symlink())
        for entry in os.scandir(path)
    )

def at(path, text):
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        name, flags = os.path.basename(path), os.O_CREAT | os.O_WRONLY
        file = os.open(name, flags, dir_fd=folder)
        os.write(file, text.encode())
        os.close(file)
        return sorted(os.listdir(folder))
    finally:
        os.close(folder)

def resolved(path):
    return os.path.relpath(os.path.realpath(path, strict=True), os.getcwd())

def copytree(source, target):
    # Into itself it would go on until the path is too long.
    if not os.path.realpath(target).startswith(os.path.realpath(source)):
        shutil.copytree(source, target, symlinks=True)

def down(path):
    here = os.getcwd()
    os.chdir(path)
    try:
        return os.getcwd().removeprefix(here), sorted(os.listdir("."))
    finally:
        os.chdir(here)

calls = {
    "write": write, "read": read, "overwrite": overwrite, "list": list_folder,
    "at": at, "resolved": resolved, "down": down,
    "mkdir": os.mkdir, "makedirs": os.makedirs, "rmdir": os.rmdir,
    "unlink": os.unlink, "rename": os.rename, "replace": os.replace,
    "symlink": os.symlink, "link": os.link, "chmod": os.chmod,
    "truncate": os.truncate, "rmtree": shutil.rmtree, "move": shutil.move,
    "copy": shutil.copy2, "copytree": copytree,
    "exists": os.path.exists, "access": lambda path: os.access(path, os.W_OK),
    "utime": lambda path: os.utime(path, (7, 9)) or os.stat(path).st_mtime,
    "isdir": os.path.isdir,
    "size": lambda path: os.path.isfile(path) and os.path.getsize(path),
}
for name, *arguments in json.loads(sys.stdin.read()):
    try:
        value = calls[name](*arguments)
    except (OSError, shutil.Error) as error:
        # Which of several reasons is given may differ where two names are.
        exact = name not in ("rename", "replace", "move", "at")
        value = [type(error).__name__, error.errno] if exact else "failed"
    print(json.dumps([name, arguments, value]))
print(json.dumps(list(seen("."))))
"""


def operations(seed: int, count: int) -> list[list]:
    pick = random.Random(seed)
    names = ["a", "b", "x", "y", "n", "link", "empty", "away", "loop"]

    def path() -> str:
        parts = pick.choices(names, k=pick.choice((1, 1, 2, 2, 3)))
        if len(parts) > 1 and pick.random() < 0.1:
            parts.insert(1, "..")
        return "/".join(parts)

    one = [
        *("read", "list", "mkdir", "makedirs", "rmdir", "unlink", "rmtree"),
        *("exists", "access", "utime", "isdir", "size", "resolved", "down"),
    ]
    two = ["rename", "replace", "link", "move", "copy", "copytree"]
    others = ["overwrite", "at", "symlink", "chmod", "truncate"]
    made: list[list] = []
    for n in range(count):
        name = pick.choice([*one, *two, *["write"] * 6, *others])
        if name == "write":
            made.append([name, path(), f"new {n}", pick.choice("wax")])
        elif name in ("overwrite", "at"):
            made.append([name, path(), f"<{n}>"])
        elif name == "symlink":
            made.append([name, pick.choice([*names, "a/.."]), path()])
        elif name == "chmod":
            made.append([name, path(), pick.choice((0o644, 0o755, 0o700))])
        elif name == "truncate":
            made.append([name, path(), pick.randrange(9)])
        else:
            made.append(
                [name, path(), path()] if name in two else [name, path()]
            )
    return made


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_see_what_they_would(tmp_path, user, keeping, seed):
    copy = tmp_path / "copy" / "user"
    shutil.copytree(tmp_path / "user", copy, symlinks=True)
    shutil.copytree(tmp_path / "elsewhere", tmp_path / "copy" / "elsewhere")
    asked = json.dumps(operations(seed, 150))
    before = fingerprint(user), fingerprint(tmp_path / "elsewhere")
    ours = keeping(sys.executable, "-c", PROGRAM, input=asked, cwd=user)
    native = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=asked,
        cwd=copy,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    ).stdout
    assert ours.splitlines() == native.splitlines()
    assert before == (fingerprint(user), fingerprint(tmp_path / "elsewhere"))
