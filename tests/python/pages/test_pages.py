"""Pages: links lead somewhere, lines are short, tables and figures are true."""

import re
from fnmatch import fnmatch

import page_parts
import pytest
import torch_chameleon
from page_figures import FACTS, SAID
from support import ROOT
from test_docs import DOCS, FOR_USERS, markdown

MOST_CHARACTERS = 119  # of a line of prose
MOST_WORDS = 1000  # of a folder's page, and of a part of memory/
MOST_WORDS_OF_A_PART = 200
# Whose every source file stands in its folder's page.
TABLES = ("backend", "kernels", "memory", "profiler", "python")
SOURCES = {".cpp", ".h", ".inc", ".in"}
LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)")
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
GENERATED = re.compile(
    r"<!-- (?:(\S+): tests/python/pages/page_parts\.py|[\w/]+\.py|"
    r"ci/test --times) "
    r"writes from here -->.*?<!-- (?:\1: )?to here -->"
    r"|<!-- table: begin -->.*?<!-- table: end -->",  # tests/mutations
    re.S,
)
UNITS = "%|ns|us|ms|s|min|GB/s|[kMGT]i?B|B(?! parameters)|times"
FIGURE = re.compile(rf"\d[\d.,]*\s?(?:{UNITS})(?!\w)")


def name_of(path):
    return str(path.relative_to(ROOT))


def key_of(path):
    """A page for users, as the figures name it."""
    return name_of(path).removeprefix("python/")


def prose(path):
    """A page without its code."""
    return FENCED.sub("", path.read_text())


def slug(heading):
    """What a heading is called in a link."""
    kept = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
    return kept.strip().replace(" ", "-")


def links(path):
    """What a page links to in the project: files, each with a heading."""
    for target, heading in LINK.findall(prose(path)):
        yield (path.parent / target).resolve() if target else path, heading


PAGES = [pytest.param(path, id=name_of(path)) for path in markdown()]
BY_KEY = {key_of(path): path for path in FOR_USERS}
USERS = [pytest.param(path, id=name_of(path)) for path in FOR_USERS]


@pytest.mark.parametrize("path", PAGES)
def test_links_lead_somewhere(path):
    for target, heading in links(path):
        assert target.exists(), target
        if heading:
            found = re.findall(r"^#+ (.*)$", prose(target), re.M)
            assert heading in map(slug, found), (target.name, heading)


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=name_of)
def test_a_page_of_the_site_links_to_nothing_outside_it(path):
    """`ci/docs` knows no other file; `code` names those."""
    for target, _ in links(path):
        assert target.is_relative_to(DOCS), target


def test_every_page_can_be_reached():
    reached, new = set(), {ROOT / "README.md"}
    while new:
        reached |= new
        new = {
            target
            for path in new
            for target, _ in links(path)
            if target.suffix == ".md"
        } - reached
    shown_by_github = ROOT / ".github" / "PULL_REQUEST_TEMPLATE.md"
    assert {*markdown()} - reached == {shown_by_github}


def test_the_site_has_every_page_and_every_public_name():
    site = (ROOT / "python" / "mkdocs.yml").read_text()
    listed = re.findall(r"(?:- |: )(\S+\.md)$", site, re.M)
    assert sorted(listed) == sorted(
        str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")
    )
    reference = (DOCS / "api" / "torch_chameleon.md").read_text()
    shown = set(re.findall(r"^::: torch_chameleon\..*?(\w+)$", reference, re.M))
    elsewhere = {"config", "elastic", "profiler", "__version__"}
    assert shown - {"Config"} == set(torch_chameleon.__all__) - elsewhere


@pytest.mark.parametrize("path", PAGES)
def test_lines_are_short(path):
    """But for tables, links alone, and headings that quote an error."""
    long = [
        line
        for line in prose(path).splitlines()
        if len(line) > MOST_CHARACTERS
        and not line.startswith(("|", "### `", "<!--"))
    ]
    assert long == []


FOLDERS = [page for page in PAGES if page.id.endswith("/README.md")]


@pytest.mark.parametrize("path", FOLDERS)
def test_the_page_of_a_folder_is_short(path):
    text = GENERATED.sub("", path.read_text())
    said = re.findall(r"\S*\w\S*", text)
    of_a_part = path.parent.parent == ROOT / "memory"
    is_short = of_a_part and path.parent.name != "policy"
    assert len(said) <= (MOST_WORDS_OF_A_PART if is_short else MOST_WORDS)


def sources():
    """The source files of TABLES, by folder."""
    found = {}
    for folder in TABLES:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SOURCES:
                found.setdefault(path.parent, []).append(path)
    return found


@pytest.mark.parametrize("folder", sorted({*sources()}), ids=name_of)
def test_tables_name_every_source_file_and_no_other(folder):
    """By its name, or by a pattern like `pager.*`."""
    page = folder / "README.md"
    if not page.exists():
        page = folder.parent / "README.md"
    rows = "\n".join(re.findall(r"^\|.*", page.read_text(), re.M))
    names = re.findall(r"`([\w.]+\.(?:\*|h|cpp|inc|in))`", rows)
    files = [path.name for path in sources()[folder]]
    assert [x for x in files if not any(fnmatch(x, y) for y in names)] == []
    assert [y for y in names if not any(fnmatch(x, y) for x in files)] == []


def test_headers_say_what_threads_may_do():
    headers = [
        path
        for paths in sources().values()
        for path in paths
        if path.suffix == ".h"
        and "overlay" not in path.parts  # is in every process that plan runs
        and "Thread safety:" not in path.read_text()
    ]
    assert headers == []


def test_the_first_page_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= 900


@pytest.mark.parametrize("path", USERS)
def test_pages_are_short(path):
    """But for the one in which an error is looked up by its words."""
    said = [x for x in prose(path).splitlines() if not x.startswith("|")]
    longest = 2000 if path.name == "troubleshooting.md" else 1000
    assert len(" ".join(said).split()) <= longest


@pytest.mark.parametrize(
    "part", page_parts.PARTS, ids=lambda part: f"{part.page}-{part.name}"
)
def test_generated_parts_are_not_stale(part):
    _, body, _ = part.split()
    assert body.strip() == part.make().strip(), (
        "python tests/python/pages/page_parts.py writes it"
    )


def test_the_table_of_measurements_is_not_stale():
    import training_table

    page = (DOCS / "measured.md").read_text()
    assert training_table.of_all(training_table.RESULTS) in page, (
        "./ci/gpu table writes it"
    )


def test_the_instructions_of_an_op_are_those_kept():
    import op_instructions

    page = op_instructions.PAGE.read_text()
    assert op_instructions.markdown(op_instructions.kept()) in page, (
        "op_instructions.py --write writes it"
    )


def test_what_is_lost_to_fragmentation_is_what_was_counted():
    from fragmentation import page

    assert page.markdown(page.kept()) in page.PAGE.read_text(), (
        "tests/benchmarks/fragmentation/run.py writes it"
    )


# ---- figures


def words(text):
    """A text whose line breaks do not count."""
    return " ".join(text.split())


@pytest.mark.parametrize("path", USERS)
def test_figures_are_those_of_the_data(path):
    text = words(GENERATED.sub("", prose(path)))
    text = re.sub(r"\]\([^)]*\)", "]", text)
    for maker in SAID.get(key_of(path), ()):
        for sentence in maker():
            assert sentence in text, f"{maker.__name__}: {sentence}"
            text = text.replace(sentence, "")
    for figure in FIGURE.findall(re.sub(r"`[^`]*`", "", text)):
        assert (key_of(path), figure) in FACTS, figure


@pytest.mark.parametrize(
    ("where", "source"), FACTS.items(), ids=lambda x: "-".join(x)[:40]
)
def test_facts_stand_in_their_sources(where, source):
    page, figure = where
    file, text = source
    assert figure in words(prose(BY_KEY[page])), "no page has it"
    assert text in (ROOT / file).read_text()


def test_every_page_of_figures_is_one():
    assert SAID.keys() | {page for page, _ in FACTS} <= BY_KEY.keys()
