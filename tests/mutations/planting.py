"""Markers of planted bugs in the sources, and the bugs put in their place."""

import re
from dataclasses import dataclass
from pathlib import Path

from planted import Mutation

FOLDERS = ("backend", "kernels", "memory", "profiler", "python")
_MARKER = re.compile(r"^[ \t]*// mutant: ([\w-]+)\n", re.M)
# What a scan passes over as a whole, and what nests.
_TOKEN = re.compile(
    r"//[^\n]*|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)+'|[()\[\]{};,]"
)


@dataclass(frozen=True)
class Place:
    """A marked statement: text[begin:end] of a file."""

    file: str
    begin: int
    end: int

    @property
    def needs_torch(self) -> bool:
        """Whether only the extension has it."""
        return self.file.startswith(("kernels/", "backend/torch/", "python/"))


def end_of_statement(text: str, begin: int) -> int:
    """Behind its semicolon, the brace of its body, or its list's comma.

    Where no statement begins, that is `begin`.
    """
    depth = 0
    for token in _TOKEN.finditer(text, begin):
        what = token[0]
        if depth == 0:
            # clang-format has a space before the brace of a body alone.
            is_body = what == "{" and text[token.start() - 1] == " "
            if what in (";", ",") or is_body:
                return token.end()
        if what in ("(", "[", "{"):
            depth += 1
        elif what in (")", "]", "}"):
            depth -= 1
            if depth < 0:
                break
    return begin  # there is none


def places(root: Path) -> dict[str, list[Place]]:
    """Each marker of the sources, and all statements that have it."""
    found: dict[str, list[Place]] = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".cpp", ".h"):
                continue
            text = path.read_text()
            for marker in _MARKER.finditer(text):
                begin = marker.end()
                begin += len(text[begin:]) - len(text[begin:].lstrip())
                end = end_of_statement(text, begin)
                place = Place(str(path.relative_to(root)), begin, end)
                found.setdefault(marker[1], []).append(place)
    return found


def changed(statement: str, change: str | tuple[str, str]) -> str:
    """The statement with the bug. ValueError: its piece is not there once."""
    if isinstance(change, str):
        return change
    piece, instead = change
    pattern = re.compile(r"\s+".join(map(re.escape, piece.split())))
    count = len(pattern.findall(statement))
    if count != 1:
        raise ValueError(f"its statement has {piece!r} {count} times, not once")
    return pattern.sub(lambda _: instead, statement)


def plant(text: str, place: Place, mutation: Mutation) -> str:
    """The text of the place's file with the bug in it."""
    bug = changed(text[place.begin : place.end], mutation.change)
    return text[: place.begin] + bug + text[place.end :]


def problems(mutations: tuple[Mutation, ...], root: Path) -> list[str]:
    """Why markers and mutations do not fit together, if they do not."""
    found = places(root)
    wrong = [
        f"// mutant: {marker} stands in {len(all_)} places, not in one"
        for marker, all_ in found.items()
        if len(all_) > 1
    ]
    known = {each.marker for each in mutations}
    wrong += [
        f"// mutant: {marker} in {all_[0].file} has no entry in planted.py"
        for marker, all_ in found.items()
        if marker not in known
    ]
    for each in mutations:
        if each.marker not in found:
            wrong.append(f"{each.name}: no // mutant: {each.marker} is left")
            continue
        place = found[each.marker][0]
        if place.begin == place.end:
            wrong.append(f"{each.name}: no statement follows its marker")
            continue
        text = (root / place.file).read_text()
        try:
            if plant(text, place, each) == text:
                wrong.append(f"{each.name}: it changes nothing")
        except ValueError as error:
            wrong.append(f"{each.name}: {error}")
    return wrong
