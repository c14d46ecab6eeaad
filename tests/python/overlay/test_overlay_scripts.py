"""What scripts write with, start and load, and what the C library opens."""

import sys

import pytest
from torch_chameleon.plan import overlay
from user_folder import Keeping, fingerprint, made_in


@pytest.fixture
def user(tmp_path):
    return made_in(tmp_path)


@pytest.fixture
def keeping(tmp_path):
    return Keeping(tmp_path / "overlay")


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
