"""What is written over the overlay is kept away, and found by what reads."""

import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest
from torch_chameleon.plan import overlay
from user_folder import Keeping, build_tree, fingerprint, made_in


@pytest.fixture
def user(tmp_path):
    return made_in(tmp_path)


@pytest.fixture
def keeping(tmp_path):
    return Keeping(tmp_path / "overlay")


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
