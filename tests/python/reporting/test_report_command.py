"""`python -m torch_chameleon report`, and recordings that begin early."""

import subprocess
import sys

import pytest
import torch
from page_checker import check_page
from torch_chameleon._report import command


def run_report(tmp_path, code, *options, arguments=()):
    script = tmp_path / "train.py"
    script.write_text(code)
    out = tmp_path / "page.html"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch_chameleon", "report"),
            *("--out", str(out), *options, str(script), *arguments),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    return done, out


@pytest.mark.slow
def test_the_command(tmp_path):
    done, out = run_report(
        tmp_path,
        "import sys, torch\n"
        "assert sys.argv[1:] == ['--x'], sys.argv\n"
        "model = torch.nn.Linear(4, 4).to('cuda')\n"  # they are one
        "opt = torch.optim.SGD(model.parameters())\n"
        "for _ in range(3):\n"
        "    model(torch.ones(2, 4, device='chameleon')).sum().backward()\n"
        "    opt.step()\n",
        arguments=["--x"],
    )
    assert done.returncode == 0, done.stderr
    check_page(out.read_text())


@pytest.mark.slow
def test_a_script_that_sets_the_physical_device(tmp_path):
    """As plan.md's example does, which has to come before any use."""
    done, out = run_report(
        tmp_path,
        "import torch, torch_chameleon\n"
        "torch_chameleon.config.physical_device = 'simulated'\n"
        "torch_chameleon.config.simulated_gpu = 'rtx4090'\n"
        "torch_chameleon.config.hbm_budget = '48MiB'\n"
        "with torch.device('chameleon'):\n"
        "    layers = [torch.nn.Linear(1024, 1024) for _ in range(6)]\n"
        "    model = torch.nn.Sequential(*layers)\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
        "for _ in range(4):\n"
        "    x = torch.ones(2048, 1024, device='chameleon')\n"
        "    model(x).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n",
    )
    assert done.returncode == 0, done.stderr
    text = check_page(out.read_text())
    assert "simulated rtx4090" in text
    assert "Memory over time" in text  # from the first use on
    assert "What more memory would buy" in text
    assert "swapping alone" not in text


@pytest.mark.slow
def test_a_script_that_never_uses_the_device(tmp_path):
    done, out = run_report(tmp_path, "print('hi')\n")
    assert done.stdout == "hi\n"
    assert done.stderr.count("\n") == 1
    assert "no page, since no tensor was on the device" in done.stderr
    assert done.returncode == 1
    assert not out.exists()


@pytest.mark.slow
def test_a_page_that_cannot_be_is_refused_before_anything_runs(tmp_path):
    done, _ = run_report(tmp_path, "print('hi')\n", "--out", "/nowhere/x.html")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "torch_chameleon report: --out = /nowhere/x.html: there is no folder "
        "/nowhere\n"
    )


def test_a_missing_script_is_a_sentence(tmp_path, capsys):
    missing = tmp_path / "no.py"
    with pytest.raises(SystemExit) as ended:
        command.main([str(missing)])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said == f"torch_chameleon report: no file {missing}\n"


def test_nothing_to_report_is_a_sentence(fresh):
    fresh(
        "import torch_chameleon\n"
        "with torch_chameleon.recording():\n"
        "    pass\n"
        "try:\n"
        "    torch_chameleon.report('page.html')\n"
        "except RuntimeError as error:\n"
        "    assert 'no tensor was on the device' in str(error), error\n"
        "else:\n"
        "    raise AssertionError\n"
        "assert torch_chameleon._C.first_use() is None\n"
        "torch_chameleon.config.physical_device = 'simulated'\n"
    )


def test_a_recording_begins_with_the_first_use(fresh):
    fresh(
        "import torch, torch_chameleon\n"
        "from torch_chameleon import _C\n"
        "from torch_chameleon._report.recording import latest\n"
        "with torch_chameleon.recording():\n"
        "    torch_chameleon.config.physical_device = 'cpu'\n"
        "    torch_chameleon.step()\n"  # of nothing
        "    x = torch.ones(1000, device='chameleon')\n"
        "    for _ in range(3):\n"
        "        x = x + 1\n"
        "        torch_chameleon.step()\n"
        "seen = latest()\n"
        "ops = [row[1] for row in seen.timeline if row[0] == 'compute']\n"
        "assert ops.count('aten::add.Tensor') == 3, ops\n"
        "assert len(seen.step_ends) == 3\n"
        "assert seen.memory and seen.decisions and seen.events\n"
        "with torch_chameleon.recording():\n"  # it is in use
        "    x + 1\n"
        "assert len(latest().timeline) >= 1\n"
    )


def test_a_page_that_cannot_be_written(capsys):
    """What is found out only when the program has ended is a sentence too."""
    with pytest.raises(SystemExit) as ended, command.page_about("/dev/full"):
        torch.ones(3, device="chameleon").sum().item()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said.endswith(
        "no page, since /dev/full cannot be written: No space left on device\n"
    )
    with pytest.raises(KeyError), command.page_about("/dev/full"):
        raise KeyError  # the program's own error is what counts
    assert "no page" in capsys.readouterr().err
