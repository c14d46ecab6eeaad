"""Python in Markdown runs; error texts there exist; tables are not stale.

Blocks of a page share a namespace. One that cannot run or must not run beside
the others says so in a comment on the line above it:

    <!-- not run: REASON -->
    <!-- in a new process: REASON -->
"""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import limits_table
import pytest
import trust_pages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "python" / "docs"
FENCE = re.compile(
    r"(?:^<!-- (?P<mark>[^:\n]*): (?P<reason>[^\n]+) -->\n)?"
    r"^```python\n(?P<code>.*?)^```$",
    re.M | re.S,
)
LEAST_REASON = 10  # characters


def markdown():
    """All pages of the project, as git knows them or may come to know them."""
    for path in sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("*/**/*.md")):
        parts = path.relative_to(ROOT).parts
        if not {"build", ".venv", "node_modules"} & set(parts):
            yield path


def programs(text):
    """Programs of a page: blocks in a row, apart from those to be left out."""
    made = [[]]
    for block in FENCE.finditer(text):
        mark, reason = block["mark"], block["reason"]
        assert mark in (None, "not run", "in a new process")
        assert mark is None or len(reason) > LEAST_REASON
        if mark == "in a new process":
            made.append([])
        if mark != "not run":
            made[-1].append(block["code"])
    return ["\n".join(blocks) for blocks in made if blocks]


PAGES = {
    str(path.relative_to(ROOT)): found
    for path in markdown()
    if (found := programs(path.read_text()))
}


def test_pages_with_programs():
    assert {"README.md", "python/docs/tutorial.md"} <= PAGES.keys()


@pytest.mark.parametrize(
    ("page", "index"),
    [(page, i) for page, found in PAGES.items() for i in range(len(found))],
)
def test_python_of_a_page_runs(page, index, tmp_path):
    code = PAGES[page][index]
    for library in ("transformers", "accelerate", "trl", "lightning"):
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


def test_marks_are_understood():
    text = (
        "```python\na\n```\n<!-- not run: it never ends -->\n```python\nb\n"
        "```\n```python\nc\n```\n<!-- in a new process: because it is -->\n"
        "```python\nd\n```\n"
    )
    assert programs(text) == ["a\n\nc\n", "d\n"]


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


# ---- links and tables


@pytest.mark.parametrize(
    "path", sorted(DOCS.glob("*.md")), ids=lambda p: p.name
)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_table_of_limits_is_the_planners():
    _, body, _ = limits_table.split()
    assert body.strip() == limits_table.table().strip(), (
        "python tests/python/limits_table.py writes it"
    )


@pytest.mark.parametrize("page", trust_pages.PAGES, ids=lambda page: page.name)
def test_pages_say_how_far_times_can_be_trusted(page):
    _, body, _ = trust_pages.split(page)
    assert body.strip() == trust_pages.PAGES[page]().strip(), (
        "python tests/python/trust_pages.py writes it"
    )
