"""python/docs/security.md, sentence by sentence."""

import ast
import pathlib
import re
import shutil
import stat
import subprocess
import sys

import pytest
import torch
import torch_chameleon
from support import values
from torch_chameleon import _C

PACKAGE = pathlib.Path(torch_chameleon.__file__).parent

# One training step with evictions, a file of every kind, and the statistics;
# `audit` sees every event of the interpreter.
SESSION = """
import sys, pathlib, tempfile
import torch, torch_chameleon

seen = []
folder = pathlib.Path(tempfile.mkdtemp())

def audit(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        mode, flags = arguments[1:3]
        if (mode and set(mode) & set("wax+")) or (flags or 0) & 3:
            seen.append(f"{event} {arguments[0]}")
    elif event.split(".")[0] in (
        "socket", "http", "urllib", "ftplib", "smtplib", "pickle",
        "subprocess", "webbrowser"
    ) or event in ("os.system", "os.exec", "os.posix_spawn", "os.fork"):
        seen.append(f"{event} {arguments}"[:200])

sys.addaudithook(audit)
torch_chameleon.config.hbm_budget = "1MiB"
net = torch.nn.Sequential(
    *(torch.nn.Linear(128, 128) for _ in range(8))
).to("chameleon")
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(4):
    net(torch.rand(16, 128, device="chameleon")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch_chameleon.step()
torch_chameleon.swap_stats()
torch_chameleon.save_safetensors(net.state_dict(), folder / "net.safetensors")
torch_chameleon.profiler.export_trace(str(folder / "step.jsonl"))
print(sorted(path.name for path in folder.iterdir()))
print([event for event in seen if not event.startswith(f"open {folder}/")])
"""


def test_nothing_is_sent_pickled_or_written_elsewhere(fresh):
    done = fresh(SESSION, PYTHONDONTWRITEBYTECODE="1")
    files, events = done.splitlines()[-2:]
    assert files == "['net.safetensors', 'step.jsonl']"
    assert events == "[]"


_MODULES = {
    *("socket", "ssl", "http", "urllib", "ftplib", "smtplib", "xmlrpc"),
    *("requests", "webbrowser", "socketserver", "asyncio"),
    *("pickle", "marshal", "shelve", "dill", "cloudpickle"),
}


# Writes what PyTorch's viewer reads, and reads nothing.
_PICKLES = PACKAGE / "chameleon" / "_snapshot.py"


def test_one_pickle_is_written_and_none_read():
    used = re.findall(r"pickle\.(\w+)\(", _PICKLES.read_text())
    assert used == ["dumps"]


def test_no_module_imports_what_sends_or_pickles():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Call):
                called = getattr(node.func, "id", "")
                assert called not in ("eval", "exec"), (path, node.lineno)
            for name in names:
                allowed = path == _PICKLES and name == "pickle"
                assert allowed or name.split(".")[0] not in _MODULES, (
                    path,
                    node.lineno,
                )


def test_the_library_calls_nothing_that_sends_or_shares():
    if shutil.which("nm") is None:
        pytest.skip("binutils' nm is missing")
    listed = subprocess.run(
        ["nm", "-D", "--undefined-only", _C.__file__],
        capture_output=True,
        text=True,
        check=True,
    )
    called = {
        line.split()[-1].split("@")[0] for line in listed.stdout.splitlines()
    }
    assert "open" in called or "open64" in called  # it lists what it should
    assert not called & {
        *("socket", "connect", "bind", "listen", "getaddrinfo", "send"),
        *("sendto", "sendmsg", "gethostbyname", "shm_open", "sem_open"),
        *("mkfifo", "mktemp", "tmpnam", "system", "popen", "execve", "fork"),
    }


def test_files_follow_the_umask_and_drafts_no_link(tmp_path, fresh):
    """A link at a name that a draft might have leads nowhere."""
    victim = tmp_path / "victim"
    victim.write_text("kept")
    target = tmp_path / "step.jsonl"
    for suffix in (".part", ".tmp", "~"):
        target.with_name(target.name + suffix).symlink_to(victim)
    fresh(f"""
import os, torch, torch_chameleon
os.umask(0o077)
x = torch.ones(64, device="chameleon")
for _ in range(4):
    y = x * 2 + x
    torch_chameleon.step()
torch_chameleon.profiler.export_trace({str(target)!r})
torch_chameleon.save_safetensors({{"x": x}}, {str(target)!r} + "2")
""")
    assert victim.read_text() == "kept"
    for path in (target, tmp_path / "step.jsonl2"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_weights_only_round_trip(tmp_path):
    net = torch.nn.Linear(4, 4).to("chameleon")
    optimizer = torch.optim.AdamW(net.parameters())
    net(values("chameleon", 2, 4)).sum().backward()
    optimizer.step()
    saved = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(saved, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    moment = saved["optimizer"]["state"][0]["exp_avg"]
    for one, other in (
        (loaded["net"]["weight"], net.weight),
        (loaded["optimizer"]["state"][0]["exp_avg"], moment),
    ):
        assert one.is_chameleon
        assert torch.equal(one.cpu(), other.detach().cpu())


def test_a_freed_tensor_does_not_show_in_a_new_file(tmp_path):
    """What is saved is what the tensor holds, to the byte."""
    secret = torch.full((1 << 12,), 7.25, device="chameleon")
    del secret
    torch_chameleon.save_safetensors(
        {"x": torch.zeros(3, device="chameleon")}, tmp_path / "x"
    )
    content = (tmp_path / "x").read_bytes()
    assert torch.tensor(7.25).numpy().tobytes() not in content
    assert sys.getsizeof(content) < 512
