"""Code that asks a value whether it is true, and what lets it go on.

    python truth_cases.py FILE

prints as JSON what FILE, which is `plan/truths.py`, says to each; any Python
can do that, for neither needs torch.
"""

import importlib.util
import json
import sys
import textwrap

# What is asserted is true.
ASSERTED = [
    ("assert v", [True]),
    ("assert not v", [False]),
    ("assert v, f'a {v.item() if v else 1} message'", [True]),
    ("assert not (\n  # behind a comment\n  v\n), 'a message'", [False]),
    ("assert v.item()", [True]),
    ("assert v.all().item(), 'a message'", [True]),
    ("assert not bool(v)", [False]),
    ("assert v and not v", [True, False]),
    ("assert v or v", [None, True]),
    ("assert v and (not not v or v)", [True, None, True]),
    ("assert (x := v.item())", [True]),
    ("with open('/dev/null'):\n  assert v", [True]),
    ("try:\n  assert v\nexcept ValueError: pass", [True]),
]

# What ends in an error is not so.
FAILING = [
    ("if v: raise KeyError", [False]),
    ("if not v: raise KeyError", [True]),
    ("if v:\n  print(end='')\n  sys.exit(1)", [False]),
    ("if v: pass\nelif not v: raise KeyError", [None, True]),
    ("if v: pass\nelse: raise KeyError(f'{3 if v else 4}')", [True]),
    ("for _ in range(2):\n  if v: raise KeyError", [False, False]),
    ("while True:\n  if v: raise KeyError\n  break", [False]),
    ("while not v: raise KeyError", [True]),
    (
        "n = 0\nwhile True:\n  n += 1\n  if v: raise KeyError\n"
        "  if n > 1: return",
        [False, False],
    ),
    ("if v or v:\n  raise KeyError", [False, False]),
    ("if v and v:\n  raise KeyError", [None]),
    ("if not (v and v): raise KeyError", [True, True]),
    ("if v is None or v: raise KeyError", [False]),
    ("try:\n  if v: raise KeyError\nfinally: pass", [False]),
    ("if (x := v.item()): raise KeyError", [False]),
    ("a = 1 if v else sys.exit(1)", [True]),
    ("if v: return\nraise KeyError", [True]),
    ("if v:\n  if sys: raise KeyError\n  else: sys.exit(1)", [False]),
    ("if v:\n  for a in 'abc': str(a)\n  raise KeyError", [False]),
    (
        "if v:\n  with open('/dev/null') as f: f.read()\n  raise KeyError",
        [False],
    ),
]

# What is kept first is asked for behind.
KEPT = [
    ("ok = v.item()\nassert ok", [True]),
    ("ok = bool(v)\nprint(end='')\nassert ok, 'a message'", [True]),
    ("ok = not v\nassert ok", [False]),
    ("bad = v.item()\nif bad: raise KeyError", [False]),
    ("bad = not v.item()\nif bad: raise KeyError", [True]),
    ("ok = v.item() and v.item()\nassert ok", [True, True]),
    ("ok = v.item() or v.item()\nassert not ok", [False, False]),
    ("ok = v.item()\nif ok: str(ok)\nassert ok", [True]),
    ("ok = v.item()\nfine = ok\nassert fine", [True]),
    ("ok = v.item()\nfor a in 'ab': str(a)\nassert ok", [True]),
    ("global ok\nok = v.item()\nassert ok", [True]),
    ("ok = v.item()\nassert (lambda: True)() and ok", [True]),
    ("ok = v.item()\nok = 3\nassert ok", [None]),
    ("ok = v.item()\nbad = ok\nok = True\nassert ok", [None]),
    ("ok = v.item()\nreturn ok", [None]),
    ("if (ok := v.item()): pass\nassert not ok", [False]),
]

# Others decide for themselves.
FREE = [
    (text, [None])
    for text in (
        "if v: pass",
        "while v: pass",
        "a = 1 if v else 2",
        "a = v.item()",
        "assert [v.item()] != []",
        "assert v.item() == False",
        "if v: return 3\nraise_it = 4",
        "if v: print('exit', end='')",
        "for _ in range(9):\n  if not v: break",
    )
]

ALL = [*ASSERTED, *FAILING, *KEPT, *FREE]

# Whether the innermost loop is one of `while`.
LOOPS = [
    ("v.item()", [False]),
    ("while not v.item(): pass", [False, True]),
    ("while True:\n  if v.item(): break", [True]),
    ("n = 0\nwhile not v and n < 2:\n  n += 1", [False, True]),
    ("for _ in 'a': v.item()", [False]),
    ("for _ in 'a':\n  while not v.item(): pass", [False, True]),
    ("while True:\n  for _ in 'a': v.item()\n  break", [False]),
    ("while True:\n  [v.item() for _ in 'a']\n  break", [False]),
    ("def f(): return v.item()\nwhile not f(): pass", [False, True]),
    ("def f(): return v.item()\nfor _ in 'a': f()", [False]),
]


def said(text, ask):
    """What is said to code, which ends without an error.

    It is compiled here: pytest writes its own asserts anew.

    Args:
        text: The code, which asks the value `v`.
        ask: Of `truths`; is given the frame.
    """
    said = []

    class Value:
        """Gets what `plan` would say, or False."""

        def __bool__(self):
            said.append(ask(sys._getframe(1)))
            return bool(said[-1])

        def item(self):
            said.append(ask(sys._getframe(1)))
            return bool(said[-1])

        def all(self):
            return self

    body = textwrap.indent(textwrap.dedent(text), "    ")
    text = f"import sys\ndef run(v):\n{body}\nrun(v)"
    exec(text, {"v": Value()})
    return said


def _main(file):
    spec = importlib.util.spec_from_file_location("truths", file)
    truths = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(truths)
    truth = [said(text, truths.expected) for text, _ in ALL]
    loop = [said(text, truths.waits) for text, _ in LOOPS]
    print(json.dumps(truth + loop))


if __name__ == "__main__":
    _main(sys.argv[1])
