"""A part of a page that a program writes, between two marks."""

from __future__ import annotations

import pathlib


def split(page: pathlib.Path, begin: str, end: str) -> tuple[str, str, str]:
    """The page up to the first mark, within the marks, and from the other on.

    Raises:
        ValueError: There is not exactly one of each mark, in this order.
    """
    before, rest = page.read_text().split(begin)
    within, after = rest.split(end)
    return before + begin, within, end + after


def put(text: str, page: pathlib.Path, begin: str, end: str) -> None:
    """Puts text between the marks of a page."""
    before, _, after = split(page, begin, end)
    page.write_text(before + text + after)
