"""What pages show runs, and prints what they show; error texts there exist.

Python of a page shares a namespace; commands of a page share a folder, in
which a train.py for CUDA is. A block of `text` behind either is what it
prints; "…" there stands for anything. A comment on the line above a block says
what is special:

    <!-- not run: REASON -->
    <!-- in a new process: REASON -->
    <!-- figures vary: REASON -->     of a block of text
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from support import ROOT

DOCS = ROOT / "python" / "docs"
FENCE = re.compile(
    r"(?:^<!-- (?P<mark>[^:\n]*): (?P<reason>[^\n]+) -->\n)?"
    r"^```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.M | re.S,
)
MARKS = ("not run", "in a new process", "figures vary")
LEAST_REASON = 10  # characters
END_OF_BLOCK = "\x1e"  # printed between the blocks of a program
LIBRARIES = ("transformers", "accelerate", "trl", "lightning")
FOR_USERS = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
# What commands are tried with: written for CUDA, and over in a second.
TRAIN = """
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--batch", type=int, default=64)
options = parser.parse_args()
model = nn.Sequential(
    *(layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.GELU()))
).cuda()
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(options.batch, 512).cuda()
for _ in range(options.epochs):
    nn.functional.mse_loss(model(x), x).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


class Block(NamedTuple):
    language: str
    code: str
    mark: str | None
    shown: str | None  # a pattern of what it prints


def pattern_of(text, varies):
    """What fits a block of text."""
    parts = [re.escape(part) for part in text.strip().split("…")]
    if varies:
        # Figures, and how far they stand from what is before them.
        parts = [
            re.sub(r"(?:\\ )*\d(?:\d|,|\\\.)*", r" *[\\d.,]+", p) for p in parts
        ]
    return "(?s:.*)".join(parts)


def blocks(text):
    """The blocks of a page that can run, each with what it prints."""
    found, end = [], None
    for fence in FENCE.finditer(text):
        mark, language = fence["mark"], fence["language"]
        assert mark is None or len(fence["reason"]) > LEAST_REASON
        assert mark in (None, *MARKS)
        assert (mark == "figures vary") <= (language == "text")
        follows = end is not None and not text[end : fence.start()].strip()
        if language == "text" and follows:
            shown = pattern_of(fence["code"], mark == "figures vary")
            found[-1] = found[-1]._replace(shown=shown)
        if language in ("python", "sh"):
            found.append(Block(language, fence["code"], mark, None))
        end = fence.end() if language in ("python", "sh") else None
    return found


def programs(text):
    """Lists of Python blocks, of one process each."""
    made = [[]]
    for block in blocks(text):
        if block.language != "python" or block.mark == "not run":
            continue
        if block.mark == "in a new process":
            made.append([])
        made[-1].append(block)
    return [found for found in made if found]


def markdown():
    """All pages of the project, as git knows them or may come to know them."""
    for path in sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("*/**/*.md")):
        parts = path.relative_to(ROOT).parts
        if not {"build", ".lease", ".venv", "node_modules"} & set(parts):
            yield path


PROGRAMS = [
    pytest.param(found, id=f"{path.relative_to(ROOT)}-{number}")
    for path in markdown()
    for number, found in enumerate(programs(path.read_text()))
]
# The same commands stand on several pages.
COMMANDS = {
    block.code: pytest.param(block, id=f"{path.stem}-{number}")
    for path in FOR_USERS
    for number, block in enumerate(blocks(path.read_text()))
    if block.language == "sh" and block.mark != "not run"
}


def test_pages_with_programs():
    assert len(PROGRAMS) >= 8
    assert len(COMMANDS) > 8


@pytest.mark.parametrize("page", FOR_USERS, ids=lambda page: page.name)
def test_blocks_say_what_they_are(page):
    for fence in FENCE.finditer(page.read_text()):
        assert fence["language"] in ("python", "sh", "text"), fence["code"]


# Seconds each, most of them to import torch.
@pytest.mark.parametrize("program", PROGRAMS)
def test_python_of_a_page_runs(program, tmp_path):
    code = f"\nprint({END_OF_BLOCK!r}, flush=True)\n".join(
        block.code for block in program
    )
    for library in LIBRARIES:
        if library in code:
            pytest.importorskip(library, reason=f"{library} is not installed")
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split(f"{END_OF_BLOCK}\n")
    for block, text in zip(program, printed, strict=True):
        if block.shown is not None:
            assert re.fullmatch(block.shown, text.strip()), text


@pytest.mark.parametrize("block", COMMANDS.values())
def test_commands_of_a_page_run(block, tmp_path):
    if "accelerate launch" in block.code:
        pytest.importorskip("accelerate", reason="accelerate is not installed")
    for script in ("train.py", "package/train.py", "package/__init__.py"):
        (tmp_path / script).parent.mkdir(exist_ok=True)
        (tmp_path / script).write_text(TRAIN if "train" in script else "")
    tools = str(Path(sys.executable).parent)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.code],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if block.shown is not None:
        assert re.fullmatch(block.shown, done.stdout.strip()), done.stdout


@pytest.mark.parametrize("page", FOR_USERS, ids=lambda page: page.name)
def test_scripts_that_a_page_names_are_there(page):
    for script in re.findall(
        r"(?<![\w/])(?:\./)?(ci/[\w.]+\w)", page.read_text()
    ):
        assert (ROOT / script).exists(), script


def test_marks_are_understood():
    text = (
        "```python\na\n```\n<!-- not run: it never ends -->\n```python\nb\n"
        "```\n```python\nc\n```\n<!-- figures vary: because they do -->\n"
        "```text\n  x  1.5 s …\n```\n<!-- in a new process: because it is -->"
        "\n```python\nd\n```\n"
    )
    first, second = programs(text)
    assert [block.code for block in first + second] == ["a\n", "c\n", "d\n"]
    shown = first[1].shown
    assert first[0].shown is second[0].shown is None
    assert re.fullmatch(shown, "x 27.25 s of many")
    assert not re.fullmatch(shown, "y 27.25 s of many")


# ---- error texts

SOURCES = [
    path
    for folder in ("backend", "kernels", "memory", "profiler", "python")
    for suffix in ("*.cpp", "*.h", "*.py")
    for path in (ROOT / folder).rglob(suffix)
] + [ROOT / "setup.py"]


def literals(source):
    """A source with literals that follow each other joined, quotes as said."""
    joined = re.sub(r"""["']\s*\n?\s*f?["']""", "", source)
    return joined.replace('\\"', '"')


@pytest.fixture(scope="module")
def sentences():
    return "\n".join(literals(path.read_text()) for path in SOURCES)


HEADING = re.compile(r"^### `(?P<text>.*)`(?: \((?P<library>\w+)\))?$", re.M)
ERRORS = HEADING.findall((DOCS / "troubleshooting.md").read_text())


WHERE_OTHERS_SAY = {
    "transformers": ["training_args.py"],
    "torch": ["serialization.py", "lib/libc10.so"],
}


def test_headings_are_errors():
    lines = (DOCS / "troubleshooting.md").read_text().splitlines()
    assert len(ERRORS) == sum(line.startswith("### ") for line in lines) > 20


@pytest.mark.parametrize(("text", "library"), ERRORS)
def test_error_text_exists(text, library, sentences):
    if library:
        found = importlib.util.find_spec(library)
        if found is None:
            pytest.skip(f"{library} is not installed")
        folder = Path(found.origin).parent
        sentences = "".join(
            literals((folder / name).read_text(errors="replace"))
            for name in WHERE_OTHERS_SAY[library]
        )
    for part in text.split("…"):
        assert part.strip() in sentences
