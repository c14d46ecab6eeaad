"""What a script writes under `plan` is kept away, and found by what it reads.

Programs of random file operations run twice, over a copy of a folder and over
the overlay: they must see the same, and the overlay's folder must not change.
"""

import ctypes
import hashlib
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

import pytest
from torch_chameleon.plan import overlay

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


@pytest.fixture
def user(tmp_path):
    """A user's folder with files, beside another one."""
    folder = tmp_path / "user"
    folder.mkdir()
    build_tree(folder)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "z").write_text("old z")
    return folder


@pytest.fixture
def keeping(tmp_path):
    """Runs a command over an overlay; its `folder` has what was kept away."""

    class Keeping:
        folder = tmp_path / "overlay"

        def __init__(self) -> None:
            self.folder.mkdir()
            self.added = overlay.environment(self.folder)

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

    return Keeping()


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


# What training scripts write with, each by code of its own.
WRITERS = """
import os, pathlib, sqlite3, subprocess, sys, tempfile
from torch_chameleon.plan import overlay
overlay.start()
import numpy, safetensors.torch, torch

torch.save({"w": torch.arange(4.0)}, "last.pt")
assert torch.load("last.pt")["w"].tolist() == [0, 1, 2, 3]
assert torch.load("last.pt", mmap=True)["w"][3] == 3
safetensors.torch.save_file({"w": torch.ones(3)}, "best.safetensors")
assert safetensors.torch.load_file("best.safetensors")["w"].sum() == 3
numpy.save("x.npy", numpy.ones(5))
assert numpy.load("x.npy", mmap_mode="r").sum() == 5
numpy.memmap("old.bin", dtype="uint8", mode="r+")[:2] = 7
assert pathlib.Path("old.bin").read_bytes() == b"\\7\\7cd"
base = sqlite3.connect("runs.db")
base.execute("create table runs (loss)")
base.execute("insert into runs values (0.5)")
base.commit()
base = sqlite3.connect("runs.db")
assert base.execute("select * from runs").fetchall() == [(0.5,)]
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter("runs")
writer.add_scalar("loss", 0.5, 1)
writer.close()
assert len(os.listdir("runs")) == 1
with tempfile.NamedTemporaryFile(dir=".", delete=False) as file:
    file.write(b"new")
os.replace(file.name, "old.bin")
assert pathlib.Path("old.bin").read_text() == "new"
shell = "mkdir -p a/b && echo hi > a/b/c && mv a d && rm x.npy"
subprocess.run(["sh", "-c", shell], check=True)
assert pathlib.Path("d/b/c").read_text() == "hi\\n"
print("done", sorted(os.listdir(".")))
"""


def test_what_scripts_write_with(user, keeping):
    (user / "old.bin").write_bytes(b"abcd")
    before = fingerprint(user)
    out = keeping(sys.executable, "-W", "ignore", "-c", WRITERS, cwd=user)
    assert out.startswith("done ['away', 'best.safetensors', 'd', "), out
    assert fingerprint(user) == before
    found = overlay.changes(keeping.folder)
    names = {
        kind: [path.removeprefix(f"{user}/") for path in paths]
        for kind, paths in found.items()
    }
    assert names["changed"] == ["old.bin"]
    assert names["removed"] == ["a"]
    assert {"best.safetensors", "d/b/c", "last.pt"} <= set(names["written"])
    assert overlay.sentence(found).startswith(
        "Kept away, your files are as they were: "
    )


# How programs start and load others.
STARTERS = """
import ctypes, _ctypes, os, shutil, subprocess
from torch_chameleon.plan import overlay
overlay.start()
echo = "echo new > x; cat x"
subprocess.run(["/bin/sh", "-c", echo], env={}, check=True)
subprocess.run(["env", "-i", "/bin/sh", "-c", echo], check=True)
subprocess.run(["sh", "-c", f"unset LD_PRELOAD; sh -c '{echo}'"], check=True)
with open("own.sh", "w") as file:
    file.write('#!/bin/sh\\necho own > y; cat y "$(dirname "$0")/a/x"\\n')
os.chmod("own.sh", 0o755)
to_file = [(os.POSIX_SPAWN_OPEN, 1, "out", os.O_CREAT | os.O_WRONLY, 0o644)]
for call in (os.posix_spawn, os.posix_spawnp):
    call("./own.sh", ["own.sh"], {}, file_actions=to_file)
    assert os.wait()[1] == 0
    print(open("out").read(), end="")
shutil.copy(_ctypes.__file__, "built.so")
os.symlink(_ctypes.__file__, "linked.so")
for name in ("./built.so", "./linked.so"):
    print(ctypes.CDLL(name)._name, flush=True)
os.execvp("./own.sh", ["own.sh"])
"""


def test_how_programs_start_and_load(user, keeping):
    before = fingerprint(user)
    out = keeping(sys.executable, "-c", STARTERS, cwd=user)
    # Each of own.sh's: "own", and "old a/x" without the end of a line.
    assert out == (
        "new\n" * 3
        + "own\nold a/x" * 2
        + "./built.so\n./linked.so\n"
        + "own\nold a/x"
    )
    assert fingerprint(user) == before


# Calls of the C library's that open files inside of it.
C_CALLS = """
import ctypes, os, threading
libc = ctypes.CDLL(None)
for name in ("fopen", "freopen", "tmpfile"):
    getattr(libc, name).restype = ctypes.c_void_p

def write(file):
    assert file, "not opened"
    file = ctypes.c_void_p(file)
    libc.fputs(b"text ", file)
    return libc.fclose(file)

os.mkfifo("pipe")
thread = threading.Thread(target=lambda: print(open("pipe").read()))
thread.start()
write(libc.fopen(b"pipe", b"w"))
thread.join()
print(write(libc.tmpfile()), write(libc.fopen(b"new", b"wx")), flush=True)
write(libc.fopen(b"/dev/stdout", b"w"))
print(libc.fopen(b"x", b"wx"), write(libc.fopen(b"x", b"r+")), open("x").read())
"""


def test_what_the_c_library_opens_itself(user, keeping):
    out = keeping(sys.executable, "-c", C_CALLS, cwd=user)
    assert out == "text \n0 0\ntext None 0 text \n"
    assert (user / "x").read_text() == "old x"


def test_sticky_bits_mean_nothing_else(user, keeping):
    """The overlay has a use of its own for them."""
    text = """
import os
os.chmod("x", 0o1644)
os.close(os.open("new", os.O_CREAT | os.O_WRONLY, 0o1644))
print(open("x").read(), open("new").read())
for name in ("a", "made"):
    os.makedirs(f"{name}/sub", exist_ok=True)
    folder = os.open(name, os.O_RDONLY)
    os.fchmod(folder, 0o2755)
    rights = os.stat(folder).st_mode & 0o777
    print(os.path.isdir(f"{name}/sub"), rights == 0o755)
os.unlink("a/x")
os.chmod("a", 0o755)
print(os.path.exists("a/x"))
"""
    out = keeping(sys.executable, "-c", text, cwd=user)
    assert out == "old x \nTrue True\nTrue True\nFalse\n"


def test_files_in_shared_memory(keeping):
    text = """
import sys
from multiprocessing.shared_memory import SharedMemory
path = sys.argv[1]
with open(path, "w") as file:
    file.write("new")
print(open(path).read(), open("/dev/./null").read())
memory = SharedMemory(create=True, size=8)
memory.buf[0] = 7
again = SharedMemory(memory.name)
print(again.buf[0])
memory.unlink()
"""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(b"old")
        file.flush()
        out = keeping(sys.executable, "-W", "ignore", "-c", text, file.name)
        assert pathlib.Path(file.name).read_text() == "old"
    assert out.splitlines()[:2] == ["new ", "7"], out


def test_a_fork_holds_no_lock(user, keeping):
    """Threads change the overlay while others fork."""
    text = """
import os, signal, threading, time
done = threading.Event()
def work():
    n = 0
    while not done.is_set():
        os.makedirs(f"new/{n}/a")
        n += 1
worker = threading.Thread(target=work, daemon=True)
worker.start()
children = []
for _ in range(50):
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    children.append(child)
    time.sleep(0.002)
done.set()
worker.join(10)
print("held" if worker.is_alive() else "free", flush=True)
for child in children:
    os.kill(child, signal.SIGKILL)
os._exit(0)
"""
    assert keeping(sys.executable, "-c", text, cwd=user) == "free\n"


def test_nothing_written_is_said(user, keeping):
    keeping("cat", str(user / "x"))
    found = overlay.changes(keeping.folder)
    assert (
        overlay.sentence(found) == "The script wrote no files in these steps."
    )


def test_many_names_are_cut():
    text = overlay.sentence({"written": list("abcde"), "removed": ["z"]})
    assert text == (
        "Kept away, your files are as they were: 5 written (a, b, c, …), "
        "1 removed (z)."
    )


def test_names_of_any_bytes(user, keeping):
    text = r"""
for name in (b"\xff", b"a\nb", b"\x1b[31m", "ü".encode()):
    open(name, "w").close()
"""
    before = fingerprint(user)
    keeping(sys.executable, "-c", text, cwd=user)
    assert fingerprint(user) == before
    found = overlay.changes(keeping.folder)["written"]
    names = sorted(path.removeprefix(f"{user}/") for path in found)
    text = overlay.sentence({"written": names[:2], "changed": names[2:]})
    assert r"2 written (\x1b[31m, a\nb), 2 changed (ü, \udcff)." in text


def landlock_version() -> int:
    return ctypes.CDLL(None).syscall(444, 0, 0, 1)


@pytest.mark.skipif(
    landlock_version() < 1, reason="this kernel has no Landlock"
)
def test_the_kernel_refuses_what_calls_it_directly(user, keeping):
    """As programs do that are not linked to the C library."""
    text = f"""
import ctypes, errno
from torch_chameleon.plan import overlay
overlay.start()
libc = ctypes.CDLL(None, use_errno=True)
path = {str(user / "x")!r}.encode()
opened = libc.syscall(257, -100, path, 1 | 512, 0)
print(opened, errno.errorcode[ctypes.get_errno()], open(path).read())
"""
    assert keeping(sys.executable, "-c", text) == "-1 EACCES old x\n"
    assert (user / "x").read_text() == "old x"


def test_it_is_not_run_where_nothing_is_kept_away():
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch_chameleon.plan.script"),
            *("{}", "figures.json", str(os.getpid())),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "could not be kept away from your files" in done.stderr
    assert done.returncode == 1


def test_zeros_fill_no_disk(user, keeping):
    """A simulated device's tensors are zeros."""
    text = """
import os
with open("large", "wb") as file:
    file.write(b"head")
    for _ in range(4):
        file.write(bytes(64 << 20))
    file.write(b"tail")
status = os.stat("large")
data = open("large", "rb").read()
print(status.st_size, status.st_blocks * 512 < 1 << 20)
print(data[:4], data[-4:], data.count(0))
"""
    out = keeping(sys.executable, "-c", text, cwd=user)
    size = 4 * (64 << 20)
    assert out == f"{size + 8} True\nb'head' b'tail' {size}\n"


def test_rights_are_what_they_were():
    """What may not be written natively may not be here."""
    with tempfile.TemporaryDirectory() as name:
        top = pathlib.Path(name)
        user, kept = top / "user", top / "overlay"
        user.mkdir()
        kept.mkdir()
        build_tree(user)
        added = overlay.environment(kept)
        (user / "a").chmod(0o500)
        (user / "x").chmod(0o400)
        (user / "drop").mkdir()
        (user / "drop" / "known").write_text("known")
        (user / "drop").chmod(0o300)  # no list, but names can be made
        nobody = 65534 if os.geteuid() == 0 else os.geteuid()
        if nobody != os.geteuid():  # root may write everything
            for path in [top, *top.rglob("*")]:
                os.chown(path, nobody, nobody, follow_symlinks=False)
        done = subprocess.run(
            [
                "sh",
                "-c",
                "echo n > a/n; echo n > x; echo n > n; cat n;"
                "echo d > drop/n; cat drop/n drop/known",
            ],
            cwd=user,
            env=os.environ | added,
            user=nobody,
            capture_output=True,
            text=True,
            check=False,
        )
        (user / "a").chmod(0o700)
        (user / "drop").chmod(0o700)
    assert done.stderr.count("Permission denied") == 2
    assert done.stdout == "n\nd\nknown"


def test_processes_agree(user, keeping):
    """Eight at a time make names in one folder, and count in one file."""
    text = """
import os, sys
me = sys.argv[1]
for n in range(25):
    open(f"a/{me}-{n}", "w").close()
    os.makedirs(f"new/{n % 5}", exist_ok=True)
    with open("x", "a") as file:
        file.write(me)
"""
    (user / "script.py").write_text(text)
    keeping(
        "sh",
        "-c",
        f"for n in 0 1 2 3 4 5 6 7; do {sys.executable} script.py $n & done;"
        "wait",
        cwd=user,
    )
    out = keeping("sh", "-c", "ls a new | wc -l; wc -c < x", cwd=user)
    # 200 new names, b and x; 5 folders; two headings and a blank line.
    assert out.split() == [str(200 + 2 + 5 + 3), str(len("old x") + 200)]
    assert sorted(os.listdir(user / "a")) == ["b", "x"]


def test_a_folder_that_the_loader_cannot_name(tmp_path):
    folder = tmp_path / "with space"
    folder.mkdir()
    with pytest.raises(ValueError, match="set TMPDIR to one without"):
        overlay.environment(folder)


def test_uploads_do_nothing(fresh):
    """No connection is opened: the endpoint does not exist."""
    out = fresh(
        """
from torch_chameleon.plan import no_uploads
no_uploads.install()
import huggingface_hub
from huggingface_hub import HfApi, create_repo, upload_file
api = HfApi()
print(create_repo("me/net").repo_id, api.delete_repo("me/net"))
print(upload_file(path_or_fileobj=b"", path_in_repo="w", repo_id="me/n").oid)
commit = api.create_commit("me/net", operations=[], commit_message="m")
print(commit.commit_message)
try:
    api.model_info("me/net")
except Exception as error:
    print("reads ask it")
""",
        HF_ENDPOINT="http://127.0.0.1:9",
    )
    assert out.splitlines()[-4:] == [
        "me/net None",
        "0" * 40,
        "m",
        "reads ask it",
    ]
