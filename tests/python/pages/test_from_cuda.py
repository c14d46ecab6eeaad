"""Lines for CUDA and for chameleon, row by row of python/docs/from-cuda.md."""

import json
import re
import subprocess
import sys

import pytest
import torch
from test_docs import DOCS

PAGE = (DOCS / "from-cuda.md").read_text()
# What the rows' lines use.
SETTING = """
import os, tempfile, torch, torch_chameleon
import torch.utils.checkpoint
x = torch.ones(2, 4)
model = torch.nn.Linear(4, 4)
data = torch.utils.data.TensorDataset(x)
path = os.path.join(tempfile.mkdtemp(), "state.pt")
torch.save(x, path)
"""
ON_DEVICE = "model.to({0!r}); x = x.to({0!r}); model(x).sum().backward()"
# What `run` does, and each line by itself.
AS_CUDA = """
import json, sys
import torch, torch_chameleon
torch_chameleon.as_cuda()
failed = {}
for line in json.load(sys.stdin):
    names = {}
    exec(SETTING, names)
    try:
        exec(line, names)
    except Exception as error:
        failed[line.splitlines()[-1]] = repr(error)
    torch.set_default_device(None)
print(json.dumps(failed))
"""


def rows(title):
    """The code in the first two cells of each row below a heading."""
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (.*?) \| (.*) \|$", section, re.M)[1:]
    return [
        tuple(re.match(r"(?:`(.*?)`)?", cell)[1] for cell in row)
        for row in cells
    ]


REPLACED = rows("What to replace")
STAYS = [line for line, _ in rows("What stays")]
GOES = rows("What goes")


def after_the_setting(line, device=None):
    names = {}
    exec(SETTING, names)
    if device is not None:
        exec(ON_DEVICE.format(device), names)
    # torch's own test helpers, imported by other tests, forbid to set flags.
    with torch.backends.__allow_nonbracketed_mutation():
        try:
            exec(line, names)
        finally:
            torch.set_default_device(None)
    return names


def as_cuda(lines):
    """The lines that fail where "cuda" means chameleon, each with its error."""
    done = subprocess.run(
        [sys.executable, "-c", AS_CUDA.replace("SETTING", repr(SETTING))],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_page_has_rows():
    assert len(REPLACED) > 20
    assert len(STAYS) > 8
    assert all(left and right for left, right in REPLACED)


@pytest.mark.parametrize("line", [right for _, right in REPLACED])
def test_lines_for_chameleon_run(line):
    assert "cuda" not in line
    after_the_setting(line)


def test_lines_for_cuda_run_as_they_are():
    assert as_cuda([left for left, _ in REPLACED]) == {}


@pytest.mark.parametrize("line", STAYS)
def test_what_stays_stays(line):
    after_the_setting(line, "chameleon")


def test_what_stays_stays_under_run():
    on_device = ON_DEVICE.format("cuda")
    assert as_cuda([f"{on_device}\n{line}" for line in STAYS]) == {}


def test_what_is_not_there_is_not_there():
    assert not hasattr(torch.backends, "chameleon")
    assert not hasattr(torch.chameleon.amp, "autocast")


def test_what_goes_has_something_in_its_place():
    lines = {line for line, _ in GOES if line.startswith("torch.cuda.CUDAG")}
    assert as_cuda(sorted(lines)).keys() == lines
    instead = dict(GOES)["torch.compile(model)"]
    names = after_the_setting(f"compiled = {instead}", "chameleon")
    expected = names["model"](names["x"]).cpu()
    assert torch.equal(names["compiled"](names["x"]).cpu(), expected)
