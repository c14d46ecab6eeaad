"""`python -m torch_chameleon run`: as Python itself runs a program."""

import os
import signal
import subprocess
import sys

import pytest
import torch_chameleon
from torch_chameleon import __main__ as commands
from torch_chameleon import run

PROGRAM = """
import sys
import helper

def fail():
    raise ValueError("what the program did wrong")

if __name__ == "__main__":
    import pickle
    assert sys.modules["__main__"].__dict__ is globals()
    assert pickle.loads(pickle.dumps(fail)) is fail
    print(sys.argv, sys.path[0], __file__, __package__, __spec__)
    if "exit" in sys.argv:
        sys.exit(7)
    if "fail" in sys.argv:
        fail()
    if "interrupt" in sys.argv:
        import os, signal
        os.kill(os.getpid(), signal.SIGINT)
"""
# The device's, in this process and in others.
DEVICES = """
import subprocess, sys, torch
from torch.utils.data import DataLoader, Dataset

SHOW = "import torch; print(torch.ones(1, device='cuda').device)"

class Answers(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        assert torch.get_num_threads() == 1
        return torch.cuda.is_available(), torch.cuda.device_count()

if __name__ == "__main__":
    exec(SHOW)
    for method in ("fork", "spawn", "forkserver"):
        loader = DataLoader(
            Answers(), num_workers=1, multiprocessing_context=method,
            pin_memory=True,
        )
        for yes, count in loader:
            assert yes.is_pinned()
            print(method, yes.cuda().tolist(), count.tolist())
    print(subprocess.check_output([sys.executable, "-c", SHOW], text=True))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "program.py").write_text(PROGRAM)
    (tmp_path / "sub" / "helper.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def both(*arguments, **options):
    """The program under Python, and under the command."""
    return (
        subprocess.run(
            [sys.executable, *command, *arguments],
            capture_output=True,
            text=True,
            check=False,
            **options,
        )
        for command in ([], ["-m", "torch_chameleon", "run"])
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--lr", "1", "-m"], 0),
        (["exit"], 7),
        (["fail"], 1),
        (["interrupt"], -signal.SIGINT),
    ],
)
def test_a_script(folder, arguments, status):
    native, ours = both("sub/program.py", *arguments)
    assert native.returncode == ours.returncode == status
    assert native.stdout == ours.stdout
    assert native.stderr == ours.stderr


@pytest.mark.slow
def test_a_script_that_is_none(folder):
    (folder / "wrong.py").write_text("def (:\n")
    native, ours = both("wrong.py")
    assert native.stderr == ours.stderr
    assert native.returncode == ours.returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize("module", ["package", "package.inner"])
def test_a_module(folder, module):
    package = folder / "package"
    package.mkdir()
    text = "import sys; print(__name__, __spec__.name, sys.argv, sys.path[0])"
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text(text)
    (package / "__main__.py").write_text(f"from . import inner\n{text}\n")
    native, ours = both("-m", module, "--lr", "1")
    assert native.returncode == ours.returncode == 0
    assert native.stdout == ours.stdout


@pytest.mark.slow
def test_processes_that_it_starts(folder):
    """They learn it from the environment."""
    pytest.importorskip(
        "torch_chameleon_autoload", reason="torch_chameleon is not installed"
    )
    (folder / "devices.py").write_text(DEVICES)
    _, ours = both("devices.py")
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout.split("\n")[:7] == [
        "chameleon:0",
        *(
            f"{method} [True] [1]"
            for method in ("fork", "spawn", "forkserver")
            for _ in range(2)
        ),
    ]
    assert ours.stdout.split()[-1] == "chameleon:0"


@pytest.mark.slow
def test_budget_and_report(folder):
    """Options are the process's and its children's; the page comes anyway."""
    (folder / "train.py").write_text(
        "import os, sys, torch, torch_chameleon\n"
        "print(torch_chameleon.config.hbm_budget, sys.argv)\n"
        "print(torch_chameleon.config.oversubscription)\n"
        "print(os.environ['CHAMELEON_HBM_BUDGET'])\n"
        "model = torch.nn.Linear(4, 4).cuda()\n"
        "model(torch.ones(2, 4).cuda()).sum().backward()\n"
        "sys.exit(3)\n"
    )
    options = ["--budget", "20MiB", "--oversubscription", "6"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch_chameleon", "run", *options),
            *("--report", "out.html", "train.py", "--report", "x"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert done.stdout.splitlines() == [
        f"{20 << 20} ['train.py', '--report', 'x']",
        "6.0",
        "20MiB",
    ]
    assert "torch_chameleon: wrote out.html" in done.stderr
    assert "What waits" in (folder / "out.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "the following arguments are required: program"),
        (["missing.py"], "no file missing.py"),
        (["-m", "missing.module"], "no module named missing.module"),
        (["--nonsense", "x.py"], "unrecognized arguments: --nonsense"),
        (["--budget"], "argument --budget: expected one argument"),
        (
            ["--budget", "lots", "sub/program.py"],
            'hbm_budget = "lots": must be a number of bytes',
        ),
        (
            ["--budget", "20", "sub/program.py"],
            '--budget: "20" has no unit: say "20GiB" or "MiB"',
        ),
        (
            ["--oversubscription", "0", "sub/program.py"],
            'oversubscription = "0": must be a number from 1',
        ),
    ],
)
def test_a_wrong_command_line_is_one_sentence(
    folder, arguments, sentence, capsys
):
    with pytest.raises(SystemExit) as error:
        run.main(arguments)
    assert error.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"torch_chameleon run: {sentence}")
    assert said.count("\n") == 1
    assert "CHAMELEON_AS_CUDA" not in os.environ


def test_g_is_gib(folder, monkeypatch, capsys):
    monkeypatch.setattr(run, "as_cuda", lambda: None)
    monkeypatch.setattr(run._script, "run_script", lambda *given: None)
    for name in ("CHAMELEON_HBM_BUDGET", "CHAMELEON_AS_CUDA"):
        monkeypatch.setenv(name, "")
    with torch_chameleon.config.patch(hbm_budget="1GiB"):
        run.main(["--budget", "0.5g", "sub/program.py"])
        assert torch_chameleon.config.hbm_budget == 512 << 20
    said = "torch_chameleon run: 0.5g is read as 0.5GiB\n"
    assert capsys.readouterr().err == said


def test_the_command_is_listed():
    assert "run" in commands._COMMANDS
