"""Looks at the HTML of a page: it is whole, and asks for nothing."""

import html.parser
import re


class Checker(html.parser.HTMLParser):
    """Tags nest, and nothing is loaded or run."""

    VOID = ("meta", "br", "wbr")

    def __init__(self):
        super().__init__()
        self.open = []
        self.text = []

    def handle_starttag(self, tag, attributes):
        assert tag not in ("script", "img", "link", "iframe", "object"), tag
        for name, _ in attributes:
            assert not name.startswith("on"), name
            assert name not in ("src", "href"), name
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def check_page(text):
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    assert "http:" not in text
    assert "https:" not in text
    assert "url(" not in text
    assert "nan" not in re.findall(r' d="[^"]*"', text)
    return "".join(checker.text)
