"""Random eager programs, run natively and on chameleon, compared bit for bit.

A program is lines of text. `templates` has the forms of lines, `toolbox` what
they may call, `generator` makes programs of a seed, `interpreter` runs them,
`comparison` finds the first difference, `runner` gives each a process of its
own, `shrinker` makes a failing one small. `python -m random_programs --help`.
"""
