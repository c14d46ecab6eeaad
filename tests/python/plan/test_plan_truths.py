"""The truth that lets a script go on, by what the code does with it."""

import sys
import textwrap

import pytest
from torch_chameleon.plan import truths


class Value:
    """Whoever asks whether it is true gets what `plan` would say, or False."""

    def __init__(self):
        self.said = []

    def __bool__(self):
        self.said.append(truths.expected(sys._getframe(1)))
        return bool(self.said[-1])

    def item(self):
        self.said.append(truths.expected(sys._getframe(1)))
        return bool(self.said[-1])


def said(text):
    """What is said to code, which ends without an error.

    It is compiled here: pytest writes its own asserts anew.
    """
    value, names = Value(), {}
    body = textwrap.indent(textwrap.dedent(text), "    ")
    exec(f"import sys\ndef run(v):\n{body}", names)
    names["run"](value)
    return value.said


@pytest.mark.parametrize(
    ("text", "truths"),
    [
        ("assert v", [True]),
        ("assert not v", [False]),
        ("assert v, f'a {v.item() if v else 1} message'", [True]),
        ("assert not (\n  # behind a comment\n  v\n), 'a message'", [False]),
        ("assert v.item()", [True]),
        ("assert not bool(v)", [False]),
        ("assert v and not v", [True, False]),
        ("assert v or v", [None, True]),
        ("assert v and (not not v or v)", [True, None, True]),
    ],
)
def test_what_is_asserted_is_true(text, truths):
    assert said(text) == truths


@pytest.mark.parametrize(
    ("text", "truths"),
    [
        ("if v: raise KeyError", [False]),
        ("if not v: raise KeyError", [True]),
        ("if v:\n  print('no')\n  sys.exit(1)", [False]),
        ("if v: pass\nelif not v: raise KeyError", [None, True]),
        ("if v: pass\nelse: raise KeyError(f'{3 if v else 4}')", [True]),
        ("for _ in range(2):\n  if v: raise KeyError", [False, False]),
        ("while True:\n  if v: raise KeyError\n  break", [False]),
        ("if v or v:\n  raise KeyError", [False, False]),
        ("if v and v:\n  raise KeyError", [None]),
        ("try:\n  if v: raise KeyError\nfinally: pass", [False]),
    ],
)
def test_what_ends_in_an_error_is_not_so(text, truths):
    assert said(text) == truths


@pytest.mark.parametrize(
    "text",
    [
        "if v: pass",
        "while v: pass",
        "a = 1 if v else 2",
        "a = v.item()",
        "assert [v.item()] != []",
        "assert v.item() == False",
        "if v: return 3\nraise_it = 4",
        "for _ in range(9):\n  if not v: break",
    ],
)
def test_others_decide_for_themselves(text):
    assert said(text) == [None]
